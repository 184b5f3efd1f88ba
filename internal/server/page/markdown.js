// Markdown, as models write it, to elements. A model's text is not to be trusted: every piece of it
// becomes a text node, no HTML is parsed, nothing is loaded, and links lead to http, https and
// mailto only. Time is linear in the text, and elements nest to a limit.

import { copyButton, element } from './dom.js'

const deepest = 10

// update shows text in node. Blocks that did not change since the last call stay as they are.
export function update(node, text) {
  const now = blocks(text.replace(/\r\n?/g, '\n').split('\n'), 0)
  const before = node.sources ?? []
  let same = 0
  while (same < now.length && same < before.length && now[same].source === before[same]) same++
  while (node.childNodes.length > same) node.lastChild.remove()
  node.append(...now.slice(same).map((b) => b.build()))
  node.sources = now.map((b) => b.source)
}

const blank = (line) => line.trim() === ''
const indent = (line) => line.length - line.trimStart().length

const fence = (line) => /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/.exec(line)
const heading = (line) => /^ {0,3}(#{1,6})(?:[ \t]|$)/.exec(line)
const rule = (line) => /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/.test(line)
const quote = (line) => /^ {0,3}>/.test(line)
const item = (line) => /^( *)([-*+]|\d{1,9}[.)])([ \t]|$)/.exec(line)

// begins reports whether a line ends the paragraph before it.
const begins = (lines, i) => fence(lines[i]) || heading(lines[i]) || rule(lines[i]) || quote(lines[i]) || item(lines[i]) || table(lines, i)

const paragraph = (lines) => element('p', { dir: 'auto' }, ...inline(lines.map((l) => l.trim()).join('\n')))

// blocks divides lines into blocks: { source, build, lines }. Of paragraphs, lines are the text.
function blocks(lines, depth) {
  if (depth > deepest) return [{ source: '', build: () => paragraph(lines), lines }]
  const out = []
  let i = 0
  const take = (end, build, text) => {
    out.push({ source: lines.slice(i, end).join('\n'), build, lines: text })
    i = end
  }
  while (i < lines.length) {
    const line = lines[i], begin = i
    if (blank(line)) {
      i++
    } else if (fence(line)) {
      takeCode(lines, i, take)
    } else if (heading(line)) {
      const level = heading(line)[1].length
      const text = line.trim().slice(level).trim().replace(/(^|[ \t])#+$/, '')
      take(i + 1, () => element('h' + Math.min(6, level + 2), { dir: 'auto' }, ...inline(text)))
    } else if (rule(line)) {
      take(i + 1, () => element('hr'))
    } else if (quote(line)) {
      let end = i
      while (end < lines.length && quote(lines[end])) end++
      const inner = lines.slice(i, end).map((l) => l.replace(/^ {0,3}> ?/, ''))
      take(end, () => element('blockquote', { dir: 'auto' }, ...blocks(inner, depth + 1).map((b) => b.build())))
    } else if (item(line)) {
      takeList(lines, i, take, depth)
    } else if (table(lines, i)) {
      takeTable(lines, i, take)
    } else {
      let end = i + 1
      while (end < lines.length && !blank(lines[end]) && !begins(lines, end)) end++
      const text = lines.slice(begin, end)
      take(end, () => paragraph(text), text)
    }
  }
  return out
}

function takeCode(lines, i, take) {
  const [, mark, language] = fence(lines[i])
  let end = i + 1
  const closes = (l) => l.trim().startsWith(mark) && l.trim().split(mark[0]).join('') === ''
  while (end < lines.length && !closes(lines[end])) end++
  const code = lines.slice(i + 1, end).join('\n')
  take(Math.min(end + 1, lines.length), () => element('figure', { class: 'code' },
    element('figcaption', {}, element('span', {}, language), copyButton('Copy code', () => code)),
    element('pre', { tabindex: 0, dir: 'ltr', 'aria-label': 'Code' }, element('code', {}, code))))
}

// takeList takes the items that follow each other: those with bullets, or those with numbers.
function takeList(lines, i, take, depth) {
  const first = item(lines[i])
  const ordered = /\d/.test(first[2]), at = first[1].length
  const kind = (m) => m && m[1].length <= at + 1 && /\d/.test(m[2]) === ordered
  const items = []
  let loose = false, gap = false, end = i
  for (; end < lines.length; end++) {
    const line = lines[end], m = item(line)
    if (blank(line)) {
      gap = true
      items.at(-1).lines.push('')
      continue
    }
    if (kind(m) && !rule(line)) {
      loose ||= gap
      items.push({ width: m[0].length, lines: [line.slice(m[0].length)] })
    } else if (indent(line) > at && (indent(line) >= Math.min(items.at(-1).width, at + 2))) {
      items.at(-1).lines.push(line.slice(Math.min(indent(line), items.at(-1).width)))
    } else if (!gap && !begins(lines, end)) {
      items.at(-1).lines.push(line)
    } else {
      break
    }
    gap = false
  }
  const start = parseInt(first[2], 10)
  take(end, () => element(ordered ? 'ol' : 'ul', { start: ordered && start !== 1 && start }, ...items.map((it) => {
    const parts = blocks(it.lines, depth + 1)
    return element('li', { dir: 'auto' }, ...parts.flatMap((b) => b.lines && !loose ? inline(b.lines.map((l) => l.trim()).join('\n')) : [b.build()]))
  })))
}

// cells divides a row at its bars.
function cells(line) {
  const out = ['']
  for (let i = 0; i < line.length; i++) {
    if (line[i] === '\\' && line[i + 1] === '|') out[out.length - 1] += '|', i++
    else if (line[i] === '|') out.push('')
    else out[out.length - 1] += line[i]
  }
  if (out[0].trim() === '') out.shift()
  if (out.length && out.at(-1).trim() === '') out.pop()
  return out.map((c) => c.trim())
}

// table returns the alignment of a table's columns if one begins in line i.
function table(lines, i) {
  if (!lines[i].includes('|') || !/^[\s|:-]*-[\s|:-]*$/.test(lines[i + 1] ?? '') || !lines[i + 1].includes('|')) return null
  const marks = cells(lines[i + 1])
  if (!marks.length || marks.length !== cells(lines[i]).length || !marks.every((m) => /^:?-+:?$/.test(m))) return null
  return marks.map((m) => m.endsWith(':') ? (m.startsWith(':') ? 'center' : 'right') : null)
}

function takeTable(lines, i, take) {
  const align = table(lines, i)
  let end = i + 2
  while (end < lines.length && lines[end].includes('|') && !blank(lines[end])) end++
  const row = (line, name) => {
    const texts = cells(line)
    return element('tr', {}, ...align.map((a, c) => element(name, { class: a, dir: 'auto' }, ...inline(texts[c] ?? ''))))
  }
  const [head, ...rows] = [lines[i], ...lines.slice(i + 2, end)]
  take(end, () => element('div', { class: 'table', tabindex: 0, role: 'group', 'aria-label': 'Table' },
    element('table', {}, element('thead', {}, row(head, 'th')), element('tbody', {}, ...rows.map((r) => row(r, 'td'))))))
}

// Inline: code, links, emphasis, line breaks.

// inline returns the nodes of a text. Delimiters of emphasis are matched as CommonMark does.
function inline(text) {
  return emphasised(scan(text))
}

const special = /[\\`*_~[\]!<\n]|https?:\/\//g

// scan divides a text into nodes, strings and delimiters.
function scan(text) {
  const out = [], brackets = [], closing = runs(text)
  let i = 0
  while (i < text.length) {
    special.lastIndex = i
    const at = special.exec(text)?.index ?? text.length
    if (at > i) out.push(text.slice(i, at))
    if (at === text.length) break
    i = at
    const c = text[i], next = text[i + 1]
    if (c === '\\' && /[!-/:-@[-`{-~]/.test(next ?? '')) {
      out.push(next)
      i += 2
    } else if (c === '\n') {
      out.push(element('br'))
      i++
    } else if (c === '`') {
      i = takeCodeSpan(text, i, closing, out)
    } else if (c === '*' || c === '_' || c === '~') {
      let end = i
      while (text[end] === c) end++
      out.push(delimiter(c, end - i, text[i - 1] ?? ' ', text[end] ?? ' '))
      i = end
    } else if (c === '[' || (c === '!' && next === '[')) {
      brackets.push(out.length)
      out.push(c === '[' ? '[' : '![')
      i += c === '[' ? 1 : 2
    } else if (c === ']' && brackets.length) {
      i = takeLink(text, i, brackets.pop(), out, brackets)
    } else if (c === 'h') {
      const url = /^https?:\/\/[^\s<>"'`|]+/.exec(text.slice(i, i + 2048))?.[0].replace(/[.,;:!?)\]*_~]+$/, '') ?? ''
      out.push(link(url, [url]))
      i += Math.max(url.length, 1)
    } else if (c === '<' && /^<(https?:\/\/|mailto:)[^\s<>]{1,2048}>/.test(text.slice(i, i + 2060))) {
      const url = text.slice(i + 1, text.indexOf('>', i))
      out.push(link(url, [url]))
      i += url.length + 2
    } else {
      out.push(c)
      i++
    }
  }
  return out
}

// runs lists the places of runs of backticks by their length, the last one first.
function runs(text) {
  const out = new Map()
  for (const m of [...text.matchAll(/`+/g)].reverse()) {
    if (!out.has(m[0].length)) out.set(m[0].length, [])
    out.get(m[0].length).push(m.index)
  }
  return out
}

function takeCodeSpan(text, i, closing, out) {
  let end = i
  while (text[end] === '`') end++
  const places = closing.get(end - i) ?? []
  while (places.length && places.at(-1) < end) places.pop()
  if (!places.length) {
    out.push(text.slice(i, end))
    return end
  }
  const code = text.slice(end, places.at(-1)).replace(/\n/g, ' ')
  out.push(element('code', { dir: 'ltr' }, /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code))
  return places.at(-1) + end - i
}

// takeLink makes a link of what was scanned since an opening bracket, if an address follows.
function takeLink(text, i, open, out, brackets) {
  const m = /^\(\s{0,9}(?:<([^<>\n]{0,2048})>|((?:[^\s()<>]|\([^\s()<>]{0,256}\)){0,2048}))(?:\s{1,9}(?:"[^"]{0,512}"|'[^']{0,512}'))?\s{0,9}\)/.exec(text.slice(i + 1, i + 3200))
  if (!m) {
    out.push(']')
    return i + 1
  }
  const image = out[open] === '!['
  const inner = out.splice(open).slice(1)
  const url = m[1] ?? m[2]
  const nodes = emphasised(inner)
  out.push(link(url, nodes.length ? nodes : [url]))
  if (!image) brackets.length = 0 // links hold no links
  return i + 1 + m[0].length
}

// link is a link if its address may be opened, else its text. Pictures are links too: nothing
// of them is loaded.
function link(address, children) {
  let url
  try { url = new URL(address) } catch { /* relative or none */ }
  if (!url || !['http:', 'https:', 'mailto:'].includes(url.protocol)) return element('span', {}, ...children)
  return element('a', { href: url.href, rel: 'noreferrer noopener', target: '_blank' }, ...children)
}

const space = /^\s$/, punctuation = /^[\p{P}\p{S}]$/u

// delimiter is a run of c between two characters: it may open or close emphasis.
function delimiter(c, n, before, after) {
  const left = !space.test(after) && (!punctuation.test(after) || space.test(before) || punctuation.test(before))
  const right = !space.test(before) && (!punctuation.test(before) || space.test(after) || punctuation.test(after))
  const word = c === '_'
  return {
    c, n, length: n, opens: left && (!word || !right || punctuation.test(before)), closes: right && (!word || !left || punctuation.test(after)),
    begun: [], ended: [],
  }
}

// emphasised matches the delimiters and returns nodes.
function emphasised(parts) {
  const stack = [], bottom = new Map()
  for (const d of parts) {
    if (!d.c || typeof d === 'string') continue
    const least = d.c === '~' ? 2 : 1
    const kind = d.c + d.opens + d.length % 3
    while (d.closes && d.n >= least) {
      let i = stack.length - 1
      const stop = bottom.get(kind) ?? 0
      const fits = (o) => o.c === d.c && o.n >= least && !((o.closes || d.opens) && (o.length + d.length) % 3 === 0 && (o.length % 3 || d.length % 3))
      while (i >= stop && !fits(stack[i])) i--
      if (i < stop) {
        bottom.set(kind, stack.length)
        break
      }
      const o = stack[i], used = d.c === '~' || (o.n >= 2 && d.n >= 2) ? 2 : 1
      const name = d.c === '~' ? 'del' : used === 2 ? 'strong' : 'em'
      o.begun.unshift(name)
      d.ended.push(name)
      o.n -= used
      d.n -= used
      stack.length = o.n ? i + 1 : i
      for (const [k, v] of bottom) bottom.set(k, Math.min(v, stack.length))
    }
    if (d.opens && d.n) stack.push(d)
  }
  return nested(parts)
}

// nested makes the elements that matched delimiters open and close.
function nested(parts) {
  const top = []
  const open = [top] // arrays of nodes, or of the parent's where elements nest too deep
  const names = []
  for (const part of parts) {
    if (!part.c || typeof part === 'string') {
      open.at(-1).push(part)
      continue
    }
    for (const name of part.ended) {
      const nodes = open.pop()
      names.pop()
      if (nodes !== open.at(-1)) open.at(-1).push(element(name, {}, ...nodes))
    }
    if (part.n) open.at(-1).push(part.c.repeat(part.n))
    for (const name of part.begun) {
      names.push(name)
      open.push(names.length > deepest ? open.at(-1) : [])
    }
  }
  return top
}
