package reduce

// Notes is the prose about a method that `restore methods NAME` prints. Paragraphs are separated by an empty line; a single line break
// means nothing.
type Notes struct {
	Equations  string // what is computed, in words and symbols of the package comment
	Departures string // from the paper and from the authors' released code
	Licence    string // what is known of the authors' code beside licenceNote
}

// licenceNote holds for every published method.
const licenceNote = "Written from the paper and a description of the authors' code; none of that code is included, so Apache-2.0 applies."

// noCode is the licence note of methods that nobody published as a method of their own.
const noCode = "Ours; Apache-2.0."
