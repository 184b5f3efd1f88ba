// Package hub turns the name of a repository on the Hugging Face hub into files.
//
// Files lie in the cache that Python's huggingface_hub reads and writes, so each
// finds what the other has downloaded:
//
//	CACHE/models--ORG--NAME/blobs/ETAG              content, named by its hash
//	CACHE/models--ORG--NAME/blobs/ETAG.incomplete   a download that was cut
//	CACHE/models--ORG--NAME/snapshots/COMMIT/PATH   a relative link to a blob
//	CACHE/models--ORG--NAME/refs/REVISION           the commit of a branch or tag
//	CACHE/.locks/models--ORG--NAME/ETAG.lock        locked while the blob is written
//
// A download follows from three kinds of answers: the list of a commit's files
// (api/models), a HEAD of each file for its hash and size, and a GET that may
// continue anywhere. The hash is the file's name in the cache and is always
// checked: sha256 of large files, git's sha1 of small ones.
//
// The token goes to the hub alone. Redirects to another scheme, host or port are
// followed without it.
package hub
