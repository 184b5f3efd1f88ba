// The conversation as articles: a question and its answer, or its two answers.

import { objectURL, upTo } from './conversation.js'
import { $, copyButton, disclosure, element, many, svg, time } from './dom.js'
import { update } from './markdown.js'
import { drawn, framed, sentence } from './overlay.js'
import { takesNumber } from './reading.js'

let views = [] // of the turns
let act // what the buttons do: { again, edit, tokens }

export function setActions(actions) { act = actions }

// showLog draws the turns of a conversation from scratch.
export function showLog(conversation) {
  views = []
  $('log').replaceChildren()
  conversation.turns.forEach((_, n) => addTurn(conversation, n))
  $('welcome').hidden = conversation.turns.length > 0
}

// cutLog takes away the turns from n on.
export function cutLog(n) {
  for (const v of views.splice(n)) v.node.remove()
  $('welcome').hidden = n > 0
}

// addTurn shows turn n, which is the last one.
export function addTurn(conversation, n) {
  const turn = conversation.turns[n]
  const view = { conversation, n, node: element('div', { class: 'turn' }, question(conversation, n)), answers: element('div', { class: 'answers' }) }
  view.node.append(view.answers)
  for (const side of ['a', 'b']) if (turn[side]) addAnswer(view, side)
  views[n] = view
  $('log').append(view.node)
  $('welcome').hidden = true
}

function question(conversation, n) {
  const turn = conversation.turns[n]
  const thumbs = upTo({ ...conversation, turns: [turn] }, 1).map((p) =>
    element('img', { src: objectURL(p.blob), alt: `Shown with question ${n + 1}: ${p.name}`, title: p.name }))
  return element('article', { class: 'question', 'aria-label': `Question ${n + 1}` },
    thumbs.length ? element('div', { class: 'thumbs' }, ...thumbs) : null,
    element('div', { class: 'said' },
      element('p', { class: 'bubble', dir: 'auto' }, turn.question),
      element('div', { class: 'actions' }, element('button', {
        type: 'button', class: 'small changes', 'aria-label': `Edit question ${n + 1}`, onclick: () => act.edit(n),
      }, 'Edit'))))
}

// addAnswer shows the article of an answer of turn n that has begun.
export function addAnswer(view, side) {
  const turn = view.conversation.turns[view.n], second = side === 'b'
  const name = `Answer ${view.n + 1}` + (second ? ', B' : '')
  const a = view[side] = {
    text: element('div', { class: 'text', dir: 'auto' }), wait: element('p', { class: 'wait' }), state: element('p', { class: 'state' }),
    line: element('p', { class: 'line' }), actions: element('div', { class: 'actions' }), figures: element('div', { class: 'figures' }),
  }
  a.node = element('article', { class: 'answer', 'aria-label': name, 'aria-busy': 'false' },
    turn.b ? element('p', { class: 'side' }, element('span', { class: 'letter' }, second ? 'B' : 'A'), read(turn[side])) : null,
    a.wait, a.text, a.state, a.line, a.actions, a.figures)
  view.answers.append(a.node)
  view.answers.classList.toggle('both', Boolean(turn.b))
  showAnswer(view.n, side)
}

export const beginAnswer = (n, side) => addAnswer(views[n], side)

const read = (answer) => answer.base === 'none' ? 'every visual token' : !takesNumber(answer.base) ? answer.base : `${many(answer.tokens, 'visual token')}, ${answer.base}`

const states = { stopped: 'stopped', cut: 'cut off: the connection broke', failed: 'not answered', length: 'ended at its longest length' }

// showAnswer shows what there is of an answer.
export function showAnswer(n, side) {
  const view = views[n]
  if (!view?.[side]) return
  const a = view[side], answer = view.conversation.turns[n][side], running = answer.state === 'running'
  a.node.setAttribute('aria-busy', running)
  update(a.text, answer.text)
  a.wait.textContent = running && !answer.text ? answer.waits ?? 'Reading…' : ''
  a.wait.hidden = a.wait.textContent === ''
  a.state.textContent = states[answer.state] ?? ''
  a.state.hidden = a.state.textContent === ''
  if (running) return
  a.line.textContent = line(answer)
  a.line.hidden = a.line.textContent === ''
  showActions(view, side)
  if (view.b) showFigures(view, side)
}

function showActions(view, side) {
  const n = view.n + 1, answer = view.conversation.turns[view.n][side], a = view[side]
  const of = side === 'b' ? `${n}, B` : n
  const buttons = [copyButton(`Copy answer ${of}`, () => answer.text)]
  if (side === 'a') {
    buttons.push(element('button', { type: 'button', class: 'small changes', 'aria-label': `Ask again ${n}`, onclick: () => act.again(view.n) }, 'Ask again'))
    if (answer.images?.some(drawn)) {
      buttons.push(element('button', {
        type: 'button', class: 'small tokens', 'aria-label': `Show on picture: answer ${n}`, 'aria-pressed': 'false', onclick: () => act.tokens(view.n),
      }, 'Show on picture'))
    }
  }
  if (answer.timings) buttons.push(disclosure('Times', times(answer)))
  a.actions.replaceChildren(...buttons)
}

// showFigures draws the tokens of two answers over the pictures, in their articles. Those of A are
// there for the eye alone: they lie over the pictures of the region Picture, too.
function showFigures(view, side) {
  const answer = view.conversation.turns[view.n][side], second = side === 'b'
  const pictures = answer.pictures?.map((i) => view.conversation.pictures.find((p) => p.id === i)) ?? []
  view[side].figures.replaceChildren(...pictures.map((p, i) => {
    const image = answer.images?.[i]
    return p && image && element('figure', { 'aria-hidden': !second && 'true' },
      drawn(image) ? framed(objectURL(p.blob), p, i + 1, image, second) : null, second ? element('figcaption', {}, sentence(i + 1, image)) : null)
  }).filter(Boolean))
}

// markTokens says whose tokens lie over the pictures: turn n's, or nobody's. With one answer there is
// nothing to choose.
export function markTokens(n) {
  const all = $('log').querySelectorAll('.tokens')
  views.forEach((v, i) => {
    const b = v.node.querySelector('.tokens')
    if (!b) return
    b.setAttribute('aria-pressed', i === n)
    b.hidden = all.length < 2
  })
}

// line says in words what an answer cost.
function line(answer) {
  const { images, timings: t, usage } = answer
  if (!t) return ''
  const out = []
  if (images?.length) {
    const sum = (of) => images.reduce((s, i) => s + of(i), 0)
    const before = sum((i) => i.tokens), encoded = sum((i) => Number(i.encoded) || i.tokens), mean = images.some((i) => i.mean)
    const after = sum((i) => i.mean ?? i.kept + i.merged)
    out.push(after === before ? `all ${before} visual tokens` : `${mean ? after.toFixed(1) : after} of ${before} visual tokens${mean ? ' in each layer, on average' : ''}`)
    if (encoded < before) out.push(`${encoded} encoded`)
  }
  out.push(`first token after ${time(t.ttft_ms)}`)
  if (t.predicted_per_second > 0) out.push(`${Math.round(t.predicted_per_second)} tokens per second`)
  const cached = cache(images ?? [], usage)
  if (cached) out.push(cached)
  return out.join(' · ')
}

// cache says what came from the server's cache.
function cache(images, usage) {
  const from = images.filter((i) => i.cache !== 'none')
  if (from.length) {
    const what = from.length === images.length ? (images.length > 1 ? 'pictures' : 'picture') : `${from.length} of ${images.length} pictures`
    const where = from.some((i) => i.cache === 'disk') ? 'the cache on disk' : from.some((i) => i.cache === 'shared') ? 'the cache of all workers' : 'the cache'
    return `${what} from ${where}, not read again`
  }
  return !images.length && usage?.prompt_tokens_details?.cached_tokens ? 'earlier text from the cache, not read again' : ''
}

// times is the table of a question's stages. Those before the first token begin where the one before
// ended, and their times add up to it.
function times(answer) {
  const { timings: t, images } = answer
  const cached = images?.length > 0 && images.every((i) => i.cache !== 'none')
  const stages = t.prepare_ms + t.encode_ms + t.select_ms + t.merge_ms + t.prompt_ms
  const ofPicture = (name, what, ms) => [name, ms > 0 || cached ? what : 'not needed', ms, cached && ms < 1]
  const rows = [
    ['Wait', 'for a free place', Math.max(0, t.ttft_ms - stages)],
    ofPicture('Prepare', 'the picture is decoded and resized', t.prepare_ms),
    ofPicture('Encode', 'patches become tokens', t.encode_ms),
    ofPicture('Select', 'some are chosen', t.select_ms),
    ofPicture('Merge', 'the others join them', t.merge_ms),
    ['Prefill', `${many(t.prompt_n, 'token')} of the prompt ${t.prompt_n === 1 ? 'is' : 'are'} read`, t.prompt_ms, t.prompt_n === 0],
  ]
  const end = Math.max(t.ttft_ms + t.predicted_ms, 1e-9)
  const body = element('tbody')
  let at = 0
  const add = (name, what, ms, from, skip, total) => {
    const bar = svg('svg', { viewBox: '0 0 1000 10', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
      !skip && ms > 0 && svg('rect', { x: 1000 * from / end, width: Math.max(2, 1000 * ms / end), height: 10 }))
    body.append(element('tr', { class: total && 'total' }, element('th', { scope: 'row' }, name), element('td', { class: 'what' }, what),
      element('td', { class: 'bar' }, bar), element('td', { class: 'ms' }, skip ? 'cached' : exact(ms))))
  }
  for (const [name, what, ms, skip] of rows) {
    add(name, what, ms, at, skip)
    at += ms
  }
  add('First token', 'all of the above', t.ttft_ms, 0, false, true)
  add('Decode', `${many(t.predicted_n, 'token')} of the answer ${t.predicted_n === 1 ? 'is' : 'are'} written`, t.predicted_ms, t.ttft_ms)
  return element('div', { class: 'times' },
    element('table', { 'aria-label': 'Stage times' },
      element('caption', {}, 'A token is a piece of a picture, or of a word.'), body))
}

const exact = (ms) => (ms < 100 ? ms.toFixed(1) : Math.round(ms)) + ' ms'
