// The examples use what any program can: the public packages. They are a module of
// their own, so that nothing internal is within reach.
module example.com/restore-examples

go 1.26.0

require github.com/restore-vlm/restore v0.0.0

require (
	github.com/dlclark/regexp2 v1.12.0 // indirect
	github.com/klauspost/cpuid/v2 v2.4.0 // indirect
	golang.org/x/image v0.47.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/restore-vlm/restore => ../
