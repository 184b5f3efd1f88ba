package cli

// In returns commands of another program, for [Program].Elsewhere.
func In(program string, commands ...string) map[string]string {
	in := map[string]string{}
	for _, name := range commands {
		in[name] = program
	}
	return in
}
