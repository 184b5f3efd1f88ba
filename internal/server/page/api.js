// Requests to the server.

import { session } from './store.js'

// Refused is the server's answer to a request that it does not do.
export class Refused extends Error {
  constructor(status, error) {
    super(error.message)
    Object.assign(this, { status, code: error.code, param: error.param, error })
  }
}

// Broken is an answer that ended before it was complete.
export class Broken extends Error {}

// Away is a server that cannot be reached.
export class Away extends Error {}

export const key = { get: () => session.get('key', ''), set: (k) => session.set('key', k) }

export async function api(path, body, signal) {
  const headers = { 'Content-Type': 'application/json' }
  if (key.get()) headers.Authorization = 'Bearer ' + key.get()
  let reply
  try {
    reply = await fetch(path, { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal, credentials: 'omit' })
  } catch (e) {
    throw e.name === 'AbortError' ? e : new Away(e.message)
  }
  if (reply.ok) return reply
  let error = { message: `${reply.status} ${reply.statusText}` }
  try { error = (await reply.json()).error } catch { /* no JSON: the status must do */ }
  throw new Refused(reply.status, error)
}

// events yields the chunks of a stream; comments are skipped.
export async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    let part
    try {
      part = await reader.read()
    } catch (e) {
      throw e.name === 'AbortError' ? e : new Broken(e.message)
    }
    if (part.done) throw new Broken('the stream ended without [DONE]')
    rest += part.value
    for (let end; (end = rest.indexOf('\n\n')) >= 0;) {
      const event = rest.slice(0, end)
      rest = rest.slice(end + 2)
      if (!event.startsWith('data: ')) continue
      if (event === 'data: [DONE]') return
      const chunk = JSON.parse(event.slice(6))
      if (chunk.error) throw new Refused(0, chunk.error)
      yield chunk
    }
  }
}
