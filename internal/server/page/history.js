// The conversations that this browser keeps, and files of them.

import { dataURL, id, objectURL, title } from './conversation.js'
import { $, button, element, many } from './dom.js'
import { conversations } from './store.js'

let hooks // { open, current, deleted, fail }

// startHistory wires the list. open(conversation) shows one; current() is the id of the one that is
// shown; deleted(ids) is called when some are gone.
export function startHistory(h) {
  hooks = h
  $('clear').onclick = async () => drop(await conversations.all())
  $('export').onclick = () => save(h.conversation())
  $('import').onclick = () => $('import-file').click()
  $('import-file').onchange = async () => {
    const file = $('import-file').files[0]
    $('import-file').value = ''
    if (file) await load(file)
  }
}

export async function showHistory() {
  let list = []
  try {
    list = await conversations.all()
  } catch {
    $('no-history').textContent = 'This browser keeps no conversations: it does not let the page store them.'
  }
  $('no-history').hidden = list.length > 0
  $('clear').disabled = list.length === 0
  $('export').disabled = hooks.conversation().turns.length === 0
  $('history').replaceChildren(...list.map(entry))
}

function entry(c) {
  const picture = c.pictures.find((p) => !p.removed) ?? c.pictures[0]
  const open = element('button', { type: 'button', class: 'open', 'aria-label': title(c), 'aria-current': c.id === hooks.current() && 'true', onclick: () => hooks.open(c) },
    picture ? element('img', { src: objectURL(picture.thumb ?? picture.blob), alt: '' }) : element('span', { class: 'blank', 'aria-hidden': 'true' }, [...title(c)][0]),
    element('span', { class: 'what' }, element('span', { class: 'title', dir: 'auto' }, title(c)), element('span', { class: 'when' }, when(c.at))))
  return element('li', {}, open, button('×', () => drop([c]), { class: 'delete', 'aria-label': `Delete ${title(c)}`, title: `Delete ${title(c)}` }))
}

function when(at) {
  const day = new Date(at), today = new Date()
  return day.toDateString() === today.toDateString()
    ? day.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' }) : day.toLocaleDateString([], { day: 'numeric', month: 'short', year: 'numeric' })
}

let undoable

// drop deletes conversations. For a while they can be brought back.
async function drop(list) {
  for (const c of list) await conversations.remove(c.id)
  hooks.deleted(list.map((c) => c.id))
  await showHistory()
  clearTimeout(undoable)
  $('undo').hidden = !list.length
  $('undo').replaceChildren(`${many(list.length, 'conversation')} deleted. `, button('Undo', async () => {
    $('undo').hidden = true
    for (const c of list) await conversations.save(c)
    await showHistory()
  }, { class: 'small' }))
  undoable = setTimeout(() => {
    $('undo').hidden = true
    $('undo').replaceChildren()
  }, 10000)
}

// Files

const version = 1, most = 300e6 // bytes of a file

async function save(c) {
  const pictures = []
  for (const { blob, thumb, ...p } of c.pictures) pictures.push({ ...p, data: await dataURL(blob) })
  const text = JSON.stringify({ restore: 'conversation', version, ...c, pictures })
  const link = element('a', { href: URL.createObjectURL(new Blob([text], { type: 'application/json' })), download: `conversation-${new Date(c.at).toISOString().slice(0, 10)}.json` })
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 60000)
}

async function load(file) {
  let c
  try {
    if (file.size > most) throw new Error(`it has ${file.size} bytes, want at most ${most}`)
    c = checked(JSON.parse(await file.text()))
  } catch (e) {
    return hooks.fail({ say: `${file.name} is no conversation that this page exported.`, details: e.message })
  }
  await conversations.save(c).catch(() => {}) // it can be shown all the same
  hooks.open(c)
}

// checked returns what a file holds as a conversation, or throws why it is none.
function checked(f) {
  const want = (ok, what) => { if (!ok) throw new Error(what) }
  const text = (s) => typeof s === 'string', whole = (n) => Number.isSafeInteger(n) && n >= 0
  want(f?.restore === 'conversation' && f.version === version, `want "restore": "conversation", "version": ${version}`)
  want(Array.isArray(f.pictures) && Array.isArray(f.turns) && f.turns.length, 'want lists of pictures and turns')
  const pictures = f.pictures.map((p, i) => {
    want(text(p?.data) && text(p.id) && text(p.name) && whole(p.width) && whole(p.height) && p.width * p.height > 0, `picture ${i + 1} is none`)
    const type = /^data:(image\/(?:png|jpeg|webp|gif|bmp));base64,/.exec(p.data.slice(0, 40))
    want(type, `picture ${i + 1} is no PNG, JPEG, WebP, GIF or BMP`)
    const bytes = Uint8Array.from(atob(p.data.slice(type[0].length)), (b) => b.charCodeAt(0))
    return {
      id: p.id, name: p.name, width: p.width, height: p.height, removed: p.removed === true,
      tokens: whole(p.tokens) ? p.tokens : undefined, print: String(p.print), blob: new Blob([bytes], { type: type[1] }),
    }
  })
  const ids = new Set(pictures.map((p) => p.id))
  const turns = f.turns.map((t, i) => {
    want(text(t?.question) && Array.isArray(t.pictures) && t.pictures.every((p) => ids.has(p)), `turn ${i + 1} has no question`)
    want(text(t.a?.text), `turn ${i + 1} has no answer`)
    return { question: t.question, pictures: t.pictures, a: answer(t.a), b: t.b && answer(t.b) }
  })
  return { id: id(), at: Date.now(), pictures, turns }
}

// answer keeps what a file says of an answer, if it is complete; else the text alone.
function answer(a) {
  const number = (...all) => all.every(Number.isFinite)
  const t = a.timings
  const timed = t && number(t.queue_ms, t.prepare_ms, t.encode_ms, t.select_ms, t.merge_ms, t.prompt_ms, t.ttft_ms, t.predicted_ms, t.prompt_n, t.predicted_n, t.predicted_per_second)
  const images = Array.isArray(a.images) && a.images.every((i) => number(i?.tokens, i.kept, i.merged, i.width, i.height) && Array.isArray(i.groups) &&
    i.groups.every((g) => Array.isArray(g?.members) && g.members.every((m) => Number.isInteger(m) && m >= 0 && m < i.tokens)) &&
    (i.grid == null || (number(i.grid.rows, i.grid.cols) && i.grid.rows * i.grid.cols <= 1e5)))
  return {
    text: String(a.text), state: ['done', 'stopped', 'cut', 'failed', 'length'].includes(a.state) ? a.state : 'done',
    base: String(a.base ?? ''), tokens: Number(a.tokens) || 0,
    ...(timed && { timings: t, usage: a.usage }),
    ...(images && Array.isArray(a.pictures) && { images: a.images, pictures: a.pictures }),
  }
}
