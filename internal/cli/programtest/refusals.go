package programtest

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// NamesElsewhere checks that a command of another program says where it is, and is there.
func (p *Tested) NamesElsewhere(t *testing.T) {
	for name, program := range p.Elsewhere {
		r := p.execute(t.Context(), nil, "", []string{name, "--json"})
		want := p.Name + ": " + name + " is in " + program + " now\n"
		if r.Code != cli.ExitUsage || !strings.HasPrefix(r.Err, want) {
			t.Errorf("exit %d, stderr %q, want %q", r.Code, r.Err, want)
		}
		if r := p.Command(name, "--help"); r.Code != cli.ExitOK {
			t.Errorf("%s %s --help: exit %d, stderr %q", program, name, r.Code, r.Err)
		}
	}
}

// RefusesUsage checks that every error in a command line gives exit code 2, one line with the
// reason, of which Want is a part, and a hint at the help.
func (p *Tested) RefusesUsage(t *testing.T, lines map[string]struct {
	Args []string
	Want string
}) {
	for name, c := range lines {
		r := p.Command(c.Args...)
		lines := strings.Split(strings.TrimSuffix(r.Err, "\n"), "\n")
		if r.Code != cli.ExitUsage || r.Out != "" || len(lines) != 2 ||
			!strings.HasPrefix(lines[0], p.Name+": ") || !strings.Contains(lines[0], c.Want) ||
			!strings.HasPrefix(lines[1], "see '"+p.Name+" ") ||
			!strings.HasSuffix(lines[1], "--help'") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q, want exit 2 and a line with %q", name,
				r.Code, r.Out, r.Err, c.Want)
		}
	}
}

// RefusesFiles checks that errors in files give exit code 1 and exactly one line that names the
// file and the reason. home is the folder of the hub's cache.
func (p *Tested) RefusesFiles(t *testing.T, home string, lines map[string]struct {
	Args, Want []string
}) {
	for name, c := range lines {
		r := p.With(t.Context(), map[string]string{"HF_HOME": home}, "", c.Args...)
		line, rest, _ := strings.Cut(r.Err, "\n")
		ok := r.Code == cli.ExitFailure && r.Out == "" && rest == "" &&
			strings.HasPrefix(line, p.Name+": ")
		for _, w := range c.Want {
			ok = ok && strings.Contains(line, w)
		}
		if !ok {
			t.Errorf("%s: exit %d, stdout %q, stderr %q, want exit 1 and a line with %q", name,
				r.Code, r.Out, r.Err, c.Want)
		}
	}
}

// Text is a command line that reads a text from a file, whose name is IN, or from stdin.
type Text = struct {
	Args  []string
	Text  string
	Stdin bool
	Name  string // of the file, with its extension
	Named string // what an error names before the file
	Code  int    // with the text
}

// read runs a command line with a text; it returns the name of the file too.
func (p *Tested) read(t *testing.T, c Text, text string) (clitest.Result, string) {
	t.Helper()
	if c.Stdin {
		return p.With(t.Context(), nil, text, c.Args...), "stdin"
	}
	file := clitest.Written(t, c.Name, text)
	args := slices.Clone(c.Args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "IN", file)
	}
	return p.Command(args...), file
}

// ReadsUTF8 checks that a byte-order mark changes no result, and that a text in another encoding is
// refused by its flag, its file, and the byte that is wrong.
func (p *Tested) ReadsUTF8(t *testing.T, texts map[string]Text) {
	for name, c := range texts {
		t.Run(name, func(t *testing.T) {
			want, wantFile := p.read(t, c, c.Text)
			got, file := p.read(t, c, clitest.BOM+c.Text)
			want.Out = strings.ReplaceAll(want.Out, wantFile, file)
			if clitest.Timeless(got) != clitest.Timeless(want) || want.Code != c.Code {
				t.Errorf("with a mark %+v, without %+v", got, want)
			}
			wide := clitest.InUTF16(c.Text)
			for text, fault := range map[string]string{
				"\xff\xfe" + wide: "is UTF-16: got the byte-order mark FF FE, want UTF-8",
				wide:              "is not text: got a zero byte at byte 1, as in",
				c.Text + "\xe9":   "is not UTF-8: got 0xe9 at byte ",
			} {
				r, file := p.read(t, c, text)
				if line, _, _ := strings.Cut(r.Err, "\n"); r.Code == cli.ExitOK || r.Out != "" ||
					!strings.Contains(line, c.Named+file+": ") || !strings.Contains(line, fault) {
					t.Errorf("%.20q: %+v, want %q", text, r, c.Named+file+": "+fault)
				}
			}
		})
	}
}

// ReportsLostResults checks that results that cannot be written cause exit code 1 and one line, for
// every command line.
func (p *Tested) ReportsLostResults(t *testing.T, lines ...[]string) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full here")
	}
	for _, args := range lines {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.loses(t, full, "the disk is full", args)
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		read.Close()
		p.loses(t, write, "nobody reads it any more (broken pipe)", args)
	}
}

// loses checks what a command line says whose stdout, which it closes, cannot be written.
func (p *Tested) loses(t *testing.T, out io.WriteCloser, why string, args []string) {
	t.Helper()
	cmd := p.Process(args...)
	cmd.Stdout = out
	r := clitest.Finish(t, cmd)
	out.Close()
	if r.Code != cli.ExitFailure || !strings.HasSuffix(r.Err, p.Name+": stdout: "+why+"\n") {
		t.Errorf("%v: exit %d, stderr %q, want stdout: %s", args, r.Code, r.Err, why)
	}
}
