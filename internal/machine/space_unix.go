//go:build unix

package machine

import "golang.org/x/sys/unix"

// FreeSpace returns the bytes that this user may write below the folder.
func FreeSpace(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}
