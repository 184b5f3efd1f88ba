// Package hub downloads repositories of the Hugging Face hub and finds them in the cache.
//
// The cache is shared with Python's huggingface_hub, so each finds the other's downloads:
//
//	CACHE/models--ORG--NAME/blobs/ETAG              content, named by its hash
//	CACHE/models--ORG--NAME/blobs/ETAG.incomplete   an incomplete download
//	CACHE/models--ORG--NAME/snapshots/COMMIT/PATH   a relative link to a blob
//	CACHE/models--ORG--NAME/refs/REVISION           the commit of a branch or tag
//	CACHE/.locks/models--ORG--NAME/ETAG.lock        locked while the blob is written
//
// A download needs three kinds of answers: the list of a commit's files (api/models), a HEAD of
// each file for its hash and size, and a GET that may start at any byte. The hash is the file's
// name in the cache and is always checked: sha256 for large files, git's sha1 for small ones.
//
// The token is sent only to the hub. Redirects to another scheme, host or port are followed without
// it.
package hub
