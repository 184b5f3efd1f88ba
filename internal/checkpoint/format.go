package checkpoint

// Format is one form in which models are written. Each package of a format has one.
type Format struct {
	Name  string // for people, see About
	Looks string // what a model of this format is, for errors; "" if another format says it
	// Companion is set if a model may need another file or folder.
	Companion bool
	// Is reports whether the model at p has this format.
	Is func(p *Place) (bool, error)
	// Open opens the model at p.
	Open func(p *Place) (Bundle, error)
	// Tensors opens a single file of tensors under the file's names; nil if there are no such
	// files.
	Tensors func(p *Place) (*Store, error)
}

// Place is where a model lies.
type Place struct {
	Path      string // "": in the program
	Start     []byte // of a file; nil for a folder
	Families  Families
	Companion string // path of the model's other file or folder; "": the one that the model names
	// Find returns the folder of a repository in the hub's cache.
	Find func(name string) (string, error)
}
