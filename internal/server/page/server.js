// Whether the server answers, and whether its model is loaded.

import { Away, Refused } from './api.js'
import { $ } from './dom.js'

const every = 15000, soon = 1000 // milliseconds

const words = {
  away: 'The server cannot be reached. This page tries again by itself.',
  loading: 'The model is being loaded. You can already choose a picture and write; this page goes on by itself.',
  shutting_down: 'The server is shutting down. This page tries again by itself.',
}

let state = 'ready', timer, back = () => {}

function show(now) {
  const before = state
  state = now
  $('server').hidden = now === 'ready'
  if (before !== now) $('server').textContent = words[now] ?? ''
  clearTimeout(timer)
  timer = setTimeout(check, now === 'ready' ? every : soon)
  if (before !== 'ready' && now === 'ready') back()
}

async function check() {
  if (document.hidden) return show(state)
  try {
    const reply = await fetch('health', { cache: 'no-store', credentials: 'omit' })
    if (reply.ok) return show('ready')
    const code = (await reply.json()).error?.code
    show(code in words ? code : 'ready')
  } catch { show('away') }
}

// notice learns from the error of a request.
export function notice(e) {
  if (e instanceof Away) show('away')
  else if (e instanceof Refused && e.code in words) show(e.code)
}

// watch asks the server from time to time, and soon when it did not answer. It calls then when the
// server is back.
export function watch(then) {
  back = then
  show(state)
  document.addEventListener('visibilitychange', check)
  for (const event of ['online', 'offline']) window.addEventListener(event, check)
}
