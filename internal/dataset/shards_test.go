package dataset

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ensure that a data set is found in each supported place.
func TestFindShards(t *testing.T) {
	files := []string{
		"data/test-00000-of-00002-0a1b.parquet",
		"data/test-00001-of-00002-0a1b.parquet",
		"Full/random-00000-of-00001.parquet",
		"converted/validation/0000.parquet",
		"converted/validation/0001.parquet",
		"README.md",
	}
	for _, at := range []string{
		"", "lmms-lab/POPE", "POPE", "hub/datasets--lmms-lab--POPE/snapshots/abc", "datasets--lmms-lab--POPE/snapshots/abc",
	} {
		root := t.TempDir()
		for _, name := range files {
			path := filepath.Join(root, at, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := FindShards(root, "lmms-lab/POPE")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(s.Splits(), " "), "Full/random converted/validation "+
			"default/test"; got != want {
			t.Errorf("%q: %s, want %s", at, got, want)
		}
		if got := s.files[[2]string{"default", "test"}]; len(got) != 2 || got[1].of != 2 {
			t.Errorf("%q: %v", at, got)
		}
	}
}

// Ensure that the error for a missing or duplicate shard names it.
func TestShardsRefused(t *testing.T) {
	for want, names := range map[string][]string{
		"shard 1 of 2 is missing":      {"test-00000-of-00002.parquet"},
		"shard 0 is missing":           {"test-00001-of-00002.parquet"},
		"shard 0 occurs twice":         {"data/test-00000-of-00001-aa.parquet", "data/test-00000-of-00001-bb.parquet"},
		`no parquet files of it, got `: {"dev-00000-of-00001.parquet"},
	} {
		s := &Shards{Dir: "d", files: map[[2]string][]shardFile{}}
		var err error
		for _, n := range names {
			if err == nil {
				err = s.add(n)
			}
		}
		if err == nil {
			_, err = s.Open("test")
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", names, err, want)
		}
	}
}
