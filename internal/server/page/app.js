// The page of restore serve: a conversation about pictures. This module holds the conversation and
// asks the questions; the others draw. No library, no build step: the browser loads these files.

import { api, events, key } from './api.js'
import { findCamera, openCamera } from './camera.js'
import { ahead, body, create, shown, upTo, waiting } from './conversation.js'
import { $, button, disclosure, element, time } from './dom.js'
import { showHistory, startHistory } from './history.js'
import { addTurn, beginAnswer, cutLog, markTokens, setActions, showAnswer, showLog } from './log.js'
import { acceptDrops, count, read, showPictures, showTokens } from './pictures.js'
import { explain } from './problems.js'
import { comparing, expected, fit, followControls, forget, keep, keepSettings, learn, readByDefault, reading, servesAll, setModel, settings, systemText, takesNumber } from './reading.js'
import { notice, watch } from './server.js'
import { conversations, session } from './store.js'

let model = null // the object of /v1/models
let conversation = create()
let running = null // the AbortController of the question that is being answered
let editing = null // the turn whose question is being changed
let tokensOf = null // the turn whose tokens lie over the pictures
let early = { stop() {} } // the reading ahead: what, and stop

// Errors

// fail shows { say, again, details }, and again() on a button.
function fail(problem, again) {
  const box = $('alert')
  box.replaceChildren()
  box.hidden = !problem
  if (!problem) return
  box.append(element('p', {}, problem.say))
  const row = element('div', { class: 'row' })
  if (problem.again && again) row.append(button('Try again', again))
  row.append(button('Close', () => fail(null), { class: 'quiet', 'aria-label': 'Close the message' }))
  if (problem.details) row.append(disclosure('Details', element('p', {}, problem.details)))
  box.append(row)
}

function failed(e, again) {
  if (e.name === 'AbortError') return
  notice(e)
  if (e.status === 401) askForKey()
  fail(explain(e, model), again)
}

function askForKey() {
  $('key-box').hidden = false
  $('key').focus()
}

function useKey() {
  if ($('key-box').hidden || !$('key').value.trim()) return
  key.set($('key').value.trim())
  $('key-box').hidden = true
  $('key').value = ''
}

// Model

async function loadModel() {
  try {
    model = (await (await api('v1/models')).json()).data[0]
  } catch (e) {
    failed(e, retry)
    return false
  }
  $('model').textContent = model.id
  const all = model.restore.visual_tokens, some = model.defaults.restore?.n_vis
  if (all && some < all) {
    $('budget').textContent = `A picture becomes ${all} visual tokens: small pieces that the model reads like words. This server reads ${some} of them, so that answers start sooner. After an answer they are drawn over your picture.`
  }
  $('builtin').hidden = model.id !== 'builtin'
  showIdeas(model.id === 'builtin')
  setModel(model)
  fit(conversation)
  readAhead()
  return true
}

const retry = async () => {
  fail(null)
  if (await loadModel()) await countAll()
}

function showIdeas(scenes) {
  const ideas = scenes ? ['Describe the image.', 'What number is written?', 'How many objects are there?']
    : ['Describe the image.', 'What text is in the image?', 'What is unusual about it?']
  $('ideas').replaceChildren(...ideas.map((text) => button(text, () => {
    $('question').value = text
    grow()
    $('question').focus()
  }, { class: 'idea' })))
}

// Pictures

async function take(files) {
  fail(null)
  const into = conversation, errors = []
  for (const file of files) {
    try {
      const picture = await read(file, model)
      into.pictures.push(picture)
      if (into === conversation) picturesChanged()
      if (model) await counted(picture, into)
    } catch (e) { errors.push(e) }
  }
  if (errors.length === 1) failed(errors[0], retry)
  if (errors.length > 1) fail({ say: `${errors.length} of ${files.length} files were not taken.`, details: errors.map((e) => explain(e, model).say).join(' ') })
}

// counted counts the tokens of a picture of c. One that the server cannot read is taken away again.
async function counted(picture, c) {
  try {
    if (await count(picture, model)) readByDefault(picture)
  } catch (e) {
    if (e.status === 400) c.pictures = c.pictures.filter((p) => p !== picture)
    throw e
  } finally {
    if (c === conversation) picturesChanged()
  }
}

// countAll counts the tokens of pictures that were chosen while the server was away.
async function countAll() {
  try {
    for (const p of shown(conversation).filter((p) => !p.tokens)) await counted(p, conversation)
  } catch (e) { failed(e, retry) }
}

function picturesChanged() {
  const turn = conversation.turns[tokensOf]
  showPictures(conversation, turn?.a ?? null, removePicture)
  markTokens(tokensOf)
  fit(conversation)
  readAhead()
  $('question').placeholder = waiting(conversation).length && !conversation.turns.length ? 'Describe the image.' : 'Ask a question'
}

function removePicture(picture) {
  if (running) return
  const asked = conversation.turns.some((t) => t.pictures.includes(picture.id))
  if (asked) picture.removed = true
  else conversation.pictures = conversation.pictures.filter((p) => p !== picture)
  picturesChanged()
  save()
  const next = $('pictures').querySelector('.remove') ?? $('choose')
  next.focus()
}

// worthwhile is how long a person would wait for the pictures to be read, in milliseconds, at least,
// and settled how long nothing must have changed, before they are read ahead.
const worthwhile = 1000, settled = 500

// readAhead lets the server read the pictures of the next question while it is typed, as that question
// will have them read. A question that comes sooner waits for the reading and goes on from there.
function readAhead() {
  if (running || !model) return
  const c = conversation, pictures = waiting(c), how = reading('a'), system = systemText()
  const wanted = pictures.length && editing === null && pictures.every((p) => p.tokens) && servesAll(how)
  const { fresh, ms } = wanted ? expected(c, 'a') : {}
  const what = fresh && ms > worthwhile ? JSON.stringify([c.id, pictures.map((p) => p.id), how, system]) : ''
  if (early.what === what) return
  early.stop()
  early = { what, stop() {} }
  if (!what) return
  const control = new AbortController(), timer = setTimeout(begin, settled)
  early.stop = () => { clearTimeout(timer); control.abort() }
  async function begin() {
    if (running) return
    try {
      const request = await ahead(c, pictures, { ...how, numbered: takesNumber(how.base) }, { system })
      await (await api('v1/chat/completions', request, control.signal)).json()
      keep(pictures, how)
      if (c === conversation) fit(c)
    } catch { /* the question will have the same error */ }
  }
}

// Conversation

function show(c) {
  stop()
  conversation = c
  session.set('conversation', c.id)
  const last = c.turns.findLastIndex((t) => t.a.images?.length)
  tokensOf = last < 0 ? null : last
  edit(null)
  showLog(c)
  picturesChanged()
  follow(true)
}

async function save(c = conversation) {
  c.at = Date.now()
  try {
    if (c.turns.length) await conversations.save(c)
    else await conversations.remove(c.id)
  } catch { /* the list says that nothing is kept */ }
  if (c === conversation) session.set('conversation', c.id)
  await showHistory()
}

function edit(n) {
  if (running) return
  editing = n
  const box = $('editing')
  box.hidden = n === null
  box.replaceChildren()
  if (n === null) return
  box.append(`Question ${n + 1} is being changed: asking replaces it and what follows. `, button('Cancel', () => {
    edit(null)
    $('question').value = ''
    grow()
  }, { class: 'small' }))
  $('question').value = conversation.turns[n].question
  grow()
  $('question').focus()
}

// cut takes away the turns from n on. Pictures that came with them wait for the next question.
function cut(n) {
  conversation.turns.length = n
  cutLog(n)
  if (tokensOf >= n) tokensOf = null
}

// Asking

async function ask() {
  if (running) return
  fail(null)
  useKey()
  if (!model && !await loadModel()) return
  const set = checkedSettings()
  if (!set) return
  await countAll()
  const text = $('question').value.trim()
  if (!text && !waiting(conversation).length) {
    $('question').focus()
    return fail({ say: conversation.turns.length ? 'Write a question first.' : 'Choose a picture or write a question first.' })
  }
  const question = text || 'Describe the image.'
  $('question').value = ''
  grow()
  if (editing !== null) {
    const changed = conversation.turns[editing].pictures
    cut(editing)
    edit(null)
    await turn(question, [...changed, ...waiting(conversation).map((p) => p.id).filter((p) => !changed.includes(p))], text, set)
  } else {
    await turn(question, waiting(conversation).map((p) => p.id), text, set)
  }
}

function checkedSettings() {
  try {
    return settings()
  } catch (e) { fail({ say: e.message }) }
}

// again asks question n once more; what follows it is replaced.
async function again(n) {
  if (running) return
  fail(null)
  useKey()
  const set = checkedSettings()
  if (!set) return
  const { question, pictures } = conversation.turns[n]
  cut(n)
  await turn(question, pictures, '', set)
}

// turn asks a question and shows its answer, and after it the one that it is compared with: one
// after the other, so that their times can be compared. typed returns to the textbox if there is no
// answer at all.
async function turn(question, pictures, typed, set) {
  const n = conversation.turns.length
  const now = { question, pictures, a: begun('a') }
  if (comparing()) now.b = { ...begun('b'), waits: 'Waiting for answer A…' }
  conversation.turns.push(now)
  running = new AbortController()
  controls(true)
  addTurn(conversation, n)
  picturesChanged()
  follow(true)
  const about = conversation
  save()
  for (const side of now.b ? ['a', 'b'] : ['a']) {
    try {
      await answer(about, n, side, set, running.signal)
    } catch (e) {
      end(about, n, side, e, typed)
      break
    }
  }
  running = null
  controls(false)
  await save(about)
}

const begun = (side) => ({ text: '', state: 'running', ...reading(side) })

// answer asks for one answer to turn n of c and shows it as it comes.
async function answer(c, n, side, set, signal) {
  const a = c.turns[n][side], how = { base: a.base, tokens: a.tokens, numbered: takesNumber(a.base) }
  const pictures = upTo(c, n + 1)
  const { ms } = expected({ ...c, pictures }, side)
  a.waits = `${pictures.length ? 'Reading the picture' : 'Reading'}… ${ms > 1500 ? `about ${time(ms)}` : ''}`
  showAnswer(n, side)
  const reply = await api('v1/chat/completions', await body(c, how, set), signal)
  let drawing = 0, kept = Date.now()
  const draw = () => {
    drawing ||= requestAnimationFrame(() => {
      drawing = 0
      if (a.state !== 'running' || c !== conversation) return
      showAnswer(n, side)
      follow()
    })
  }
  const last = {}
  for await (const chunk of events(reply)) {
    const choice = chunk.choices[0]
    if (choice?.delta?.content) {
      a.text += choice.delta.content
      draw()
      if (Date.now() - kept > 2000) { // a reload keeps what there is
        kept = Date.now()
        conversations.save(c).catch(() => {})
      }
    }
    if (choice?.finish_reason) last.finish = choice.finish_reason
    if (chunk.usage) last.usage = chunk.usage
    if (chunk.timings) Object.assign(last, { timings: chunk.timings, images: chunk.restore.images })
  }
  Object.assign(a, last, { pictures: pictures.map((p) => p.id), state: last.finish === 'length' ? 'length' : 'done' })
  delete a.waits
  learn(pictures, how, a.timings)
  if (c !== conversation) return
  showAnswer(n, side)
  if (side === 'a') {
    tokensOf = a.images.length ? n : null
    picturesChanged()
  } else fit(c)
  follow()
}

// end ends a turn that was not answered to its end. A question without any answer goes back to where
// it was typed.
function end(c, n, side, e, typed) {
  const now = c.turns[n]
  const stopped = e.name === 'AbortError'
  for (const s of ['a', 'b']) {
    if (now[s]?.state !== 'running') continue
    now[s].state = stopped ? 'stopped' : now[s].text ? 'cut' : 'failed'
    delete now[s].waits
  }
  if (c !== conversation) return
  if (!stopped && typed && !now.a.text && !$('question').value) {
    cut(n)
    $('question').value = typed
    grow()
    picturesChanged()
    return failed(e, ask)
  }
  showAnswer(n, 'a')
  if (now.b) showAnswer(n, 'b')
  fit(c)
  failed(e, () => again(n))
}

function stop() {
  running?.abort()
}

// controls shows whether an answer is being made.
function controls(busy) {
  $('ask').textContent = busy ? 'Stop' : 'Ask'
  document.documentElement.classList.toggle('busy', busy)
  for (const b of $('log').querySelectorAll('.changes')) b.disabled = busy
}

// follow keeps the end of the answer in view, unless the person scrolled up.
let following = true

const scroller = () => getComputedStyle($('log')).overflowY === 'auto' ? $('log') : document.scrollingElement

// below is how far the end of the log is out of view.
function below() {
  if (scroller() === $('log')) return $('log').scrollHeight - $('log').scrollTop - $('log').clientHeight
  return $('log').getBoundingClientRect().bottom - $('asking').getBoundingClientRect().top
}

function follow(begin = false) {
  following ||= begin
  if (following && below() > 0) scroller().scrollBy(0, below())
}

// grow fits the textbox to its text.
function grow() {
  const q = $('question')
  q.style.height = 'auto'
  q.style.height = q.scrollHeight + 2 + 'px'
}

// place puts the history where it is read: next to everything where there is room, else after it.
function place(wide) {
  if (wide) document.querySelector('main').before($('past'))
  else document.querySelector('main').after($('past'))
}

// Wiring

$('new').onclick = () => {
  show(create())
  $('question').focus()
}
$('choose').onclick = () => $('file').click()
$('file').onchange = () => {
  const files = [...$('file').files]
  $('file').value = ''
  take(files)
}
$('example').onclick = async () => {
  try {
    take([new File([await (await fetch('assets/example.jpg')).blob()], 'example.jpg', { type: 'image/jpeg' })])
  } catch (e) { failed(e) }
}
$('camera').onclick = () => openCamera((file) => take([file])).catch((e) => fail({ say: 'The camera cannot be used. Allow it in the browser, or choose a file.', details: e.message }))
$('ask').onclick = () => running ? stop() : ask()
$('question').addEventListener('input', grow)
const enter = (e) => e.key === 'Enter' && !e.shiftKey && !e.isComposing
$('question').addEventListener('keydown', (e) => {
  if (!enter(e)) return
  e.preventDefault()
  ask()
})
$('question').addEventListener('keypress', (e) => { if (enter(e)) e.preventDefault() }) // of a remote keyboard
$('key').addEventListener('keydown', (e) => {
  if (e.key !== 'Enter' || !$('key').value.trim()) return
  useKey()
  retry()
})
$('show').addEventListener('change', showTokens)
for (const target of [$('log'), document]) {
  target.addEventListener('scroll', () => { following = below() < 80 }, { passive: true })
}

const wide = matchMedia('(min-width: 64rem) and (min-height: 36rem)')
wide.addEventListener('change', () => place(wide.matches))
place(wide.matches)

setActions({
  again, edit,
  tokens: (n) => {
    tokensOf = n
    picturesChanged()
  },
})
followControls(() => {
  fit(conversation)
  readAhead()
})
keepSettings()
acceptDrops(take)
findCamera()
watch(async () => {
  forget()
  early.what = ''
  fail(null)
  await retry()
})
startHistory({
  open: (c) => show(c), current: () => conversation.id, conversation: () => conversation,
  deleted: (ids) => { if (ids.includes(conversation.id)) show(create()) },
  fail,
})

// The conversation of this tab is there again after a reload.
async function begin() {
  const last = session.get('conversation', null)
  const all = await conversations.all().catch(() => [])
  picturesChanged()
  const open = all.find((c) => c.id === last)
  if (open) {
    for (const t of open.turns) for (const s of ['a', 'b']) if (t[s]?.state === 'running') t[s].state = 'stopped'
    show(open)
  }
  showHistory()
  await loadModel()
  await countAll()
}

begin()
