// Package files has the one way in which this module does what a file system makes difficult.
//
//	new.go   writes a file so that it is complete or does not exist, also after a crash
//	lock.go  locks files between processes
//	text.go  reads text that people and their editors write
package files
