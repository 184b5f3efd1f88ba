module github.com/restore-vlm/restore/internal/kernel/_gen

go 1.26.0
