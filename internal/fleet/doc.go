// Package fleet spreads requests over workers on many machines with NATS JetStream.
//
// A [Client] is a [restore.Service]: it puts requests into a work queue and waits for results.
// A [Worker] takes requests from the queue and answers them with its own service. JetStream holds
// all shared state:
//
//	stream RESTORE_WORK     requests, restore.work.MODEL.PARTITION; the partition is
//	                        JetStream's hash of a request's pictures
//	consumer MODEL_P        one per partition, shared by the workers of a model
//	stream RESTORE_DEAD     requests that were given up, with the reason, and the
//	                        server's advisories about them
//	bucket restore_results  answers by CLIENT.ID, written once
//	bucket restore_begun    attempts at requests that were delivered more than once
//	bucket restore_workers  heartbeats, by MODEL.WORKER
//	bucket restore_models   descriptions of models, by MODEL
//	objects restore_pictures, restore_answers  data too large for a message,
//	                        pictures by the hash of their content
//
// MODEL is a hash of weights, their types, the preparation of pictures and the program's version,
// so that a worker receives only requests for its model. Workers of one MODEL may run on different
// CPUs, whose answers may differ in the last bits of a number. Messages outside of streams may be
// lost: restore.reply.CLIENT has pieces of streamed answers, restore.cancel.MODEL the ids of
// requests that nobody waits for, restore.rpc.MODEL questions about tokens.
//
//	connect.go  connections and their errors
//	layout.go   streams and buckets
//	message.go  requests and results as messages
//	members.go  heartbeats, and the partitions that a worker prefers
//	watch.go    follows a bucket, across restarts of servers
//	worker.go   takes requests and answers them
//	dead.go     requests that are given up
//	client.go   asks, waits, and streams
package fleet
