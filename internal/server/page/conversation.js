// A conversation: its pictures, its turns, and the messages that they are to the server.
//
// A picture is { id, name, blob, width, height, tokens, print }; removed says that the model is not
// shown it any more. A turn is { question, pictures, a, b }: the ids of the pictures that came with
// the question, the answer, and the one that it is compared with. An answer is { text, state, base,
// tokens, pictures, images, timings, usage, finish }: images[i] is the server's report on pictures[i].

export const id = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, '0')).join('')

export const create = () => ({ id: id(), at: Date.now(), pictures: [], turns: [] })

export const title = (c) => c.turns[0]?.question ?? 'New conversation'

// shown are the pictures that the next question shows to the model, in the order in which it sees them.
export function shown(c) {
  const place = new Map(c.turns.flatMap((t) => t.pictures).map((p, i) => [p, i]))
  const order = (p) => place.get(p.id) ?? Infinity
  return c.pictures.filter((p) => !p.removed).sort((a, b) => order(a) - order(b) || 0)
}

// waiting are the pictures that no question came with yet.
export function waiting(c) {
  const asked = new Set(c.turns.flatMap((t) => t.pictures))
  return shown(c).filter((p) => !asked.has(p.id))
}

// upTo are the pictures of the first turns, as the model is shown them.
export function upTo(c, turns) {
  const ids = c.turns.slice(0, turns).flatMap((t) => t.pictures)
  return ids.map((i) => c.pictures.find((p) => p.id === i)).filter((p) => p && !p.removed)
}

const urls = new WeakMap() // of blobs, as data

export function dataURL(blob) {
  if (!urls.has(blob)) {
    urls.set(blob, new Promise((done, failed) => {
      const r = new FileReader()
      r.onload = () => done(r.result)
      r.onerror = () => failed(r.error)
      r.readAsDataURL(blob)
    }))
  }
  return urls.get(blob)
}

const objects = new WeakMap()

// objectURL shows a picture in the page.
export function objectURL(blob) {
  if (!objects.has(blob)) objects.set(blob, URL.createObjectURL(blob))
  return objects.get(blob)
}

const imagePart = async (p, tokens) => {
  const image = { url: await dataURL(p.blob) }
  if (p.tokens < tokens) image.restore = { n_vis: p.tokens }
  return { type: 'image_url', image_url: image }
}

// ahead is the request that reads what the next question will begin with: all but its text.
export async function ahead(c, pictures, reading, settings) {
  const next = { ...c, turns: [...c.turns, { question: '', pictures: pictures.map((p) => p.id) }] }
  return { ...await body(next, reading, settings), stream: false, stream_options: undefined, max_completion_tokens: 1 }
}

// body is the request for the answer to the last turn. reading is { base, tokens, numbered }; numbered
// says that the method takes the number of tokens.
export async function body(c, reading, settings) {
  const messages = []
  if (settings.system) messages.push({ role: 'system', content: settings.system })
  for (const [i, turn] of c.turns.entries()) {
    const content = []
    for (const p of upTo({ ...c, turns: [turn] }, 1)) content.push(await imagePart(p, reading.numbered ? reading.tokens : 0))
    if (turn.question) content.push({ type: 'text', text: turn.question })
    messages.push({ role: 'user', content })
    if (i < c.turns.length - 1) messages.push({ role: 'assistant', content: turn.a.text })
  }
  const restore = { report: 'groups' }
  if (upTo(c, c.turns.length).length) {
    restore.base = reading.base
    if (reading.numbered) restore.n_vis = reading.tokens
  }
  const { temperature, longest, seed } = settings
  return {
    messages, restore, stream: true, stream_options: { include_usage: true },
    ...(temperature != null && { temperature }), ...(longest != null && { max_completion_tokens: longest }), ...(seed != null && { seed }),
  }
}
