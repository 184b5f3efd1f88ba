module github.com/restore-vlm/restore/kernel/_gen

go 1.26.0
