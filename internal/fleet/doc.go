// Package fleet spreads requests over workers on many machines by NATS JetStream.
//
// A [Client] is a server.Backend: it puts requests into a work queue and waits for their
// results. A [Worker] takes requests from the queue and answers them by a backend of its
// own. All state between them is JetStream's:
//
//	stream RESTORE_WORK     requests, restore.work.MODEL.PARTITION; a partition is
//	                        JetStream's own hash of a request's pictures
//	consumer MODEL_P        one a partition, shared by the workers of a model
//	stream RESTORE_DEAD     requests that were given up with the reason, and the
//	                        server's advisories about them
//	bucket restore_results  answers by CLIENT.ID, written once
//	bucket restore_begun    how often a request was begun that came more than once
//	bucket restore_workers  heartbeats, by MODEL.WORKER
//	bucket restore_models   what the models are, by MODEL
//	objects restore_pictures, restore_answers  what is too large for a message,
//	                        pictures by the hash of their content
//
// MODEL is a hash of weights, processor, arithmetic and the program's version, so that a
// worker never sees a request for another model. Subjects outside of streams carry what
// may be lost: restore.reply.CLIENT pieces of answers that are streamed,
// restore.cancel.MODEL requests that nobody waits for, restore.rpc.MODEL questions about
// tokens.
//
//	connect.go  connections, and what their errors mean
//	layout.go   streams and buckets
//	message.go  requests and results as messages
//	members.go  heartbeats, and which partitions a worker prefers
//	watch.go    follows a bucket, over servers that go and come
//	worker.go   takes requests and answers them
//	dead.go     requests that are given up
//	client.go   asks, waits, and streams
package fleet
