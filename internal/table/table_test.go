package table

import (
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	s := &Table{
		Title:   "A & B",
		Columns: []Column{{Name: "name"}, {Name: "n", Decimals: 1, Signed: true}, {Name: "what"}},
		Rows: []Row{
			{"first"},
			{"x|y", 1.25, "50 %"},
			{"z", nil, "é"},
			{"w", -0.01},
			{"v", 3, Strong("b")},
		},
		Notes: []string{"note_1"},
	}
	for format, want := range map[string]string{
		"text": "A & B\n\nname     n  what\nfirst\nx|y   +1.2  50 %\nz           é\nw      0.0\nv        3  b\n\nnote_1\n",
		"markdown": "**A & B**\n\n| name | n | what |\n|---|---:|---|\n| *first* | | |\n| " +
			"x\\|y | +1.2 | 50 % |\n" +
			"| z |  | é |\n| w | 0.0 | |\n| v | 3 | **b** |\n\nnote_1\n",
		"csv": "part,name,n,what\nfirst,x|y,1.25,50 %\nfirst,z,,é\nfirst,w,-0.01,\nfirst,v,3,b\n",
		"latex": "\\begin{table}\n\\centering\n\\begin{tabular}{lrl}\n\\toprule\nname & n & " +
			"what \\\\\n\\midrule\n" +
			"\\multicolumn{3}{l}{\\textit{first}} \\\\\nx|y & +1.2 & 50 \\% \\\\\nz &  & é " +
			"\\\\\nw & 0.0 &  \\\\\nv & 3 & \\textbf{b} \\\\\n" +
			"\\bottomrule\n\\end{tabular}\n\\caption{A \\& B. note\\_1}\n\\end{table}\n",
	} {
		var b strings.Builder
		if err := s.Write(&b, format); err != nil || b.String() != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", format, err, b.String(), want)
		}
	}
	var b strings.Builder
	if err := s.Write(&b, "json"); err != nil || !strings.Contains(b.String(), `"title": "A & B"`) {
		t.Errorf("%v %s", err, b.String())
	}
	if err := s.Write(&b, "x"); err == nil {
		t.Error("no such format")
	}
}
