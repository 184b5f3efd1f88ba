// What became of a picture's patches, drawn over the picture: every group of patches that shares a
// token has an outline and a light tint, and no two groups that touch have the same colour.

import { $, element, many, svg } from './dom.js'

export const sentence = (number, image) =>
  `Kept and merged tokens of picture ${number}: ${image.kept} kept, ${image.merged} merged of ${image.tokens}`

// kinds says which of the legend's entries a report needs.
export function kinds(image) {
  const seen = new Set(image.groups.flatMap((g) => g.members))
  return {
    kept: image.groups.some(single), merged: image.groups.some((g) => !single(g)),
    dropped: Boolean(image.grid) && (seen.size < image.grid.rows * image.grid.cols || outside(image) !== ''),
  }
}

const single = (g) => g.kept && g.members.length === 1

// drawn reports whether a report says where its tokens are.
export const drawn = (image) => Boolean(image?.grid)

const areaOf = (image) => image.area ?? { x: 0, y: 0, width: image.width, height: image.height }

// outside is the part of a picture that was cut off before it was cut into patches.
function outside(image) {
  const { x, y, width, height } = areaOf(image)
  if (width >= image.width - 0.5 && height >= image.height - 0.5) return ''
  return `M0 0H${image.width}V${image.height}H0zM${x} ${y}v${height}h${width}v${-height}z`
}

// overlay draws a report to lie over its picture, which fills the same box.
export function overlay(number, image) {
  const { rows, cols } = image.grid
  const area = areaOf(image)
  const root = svg('svg', {
    class: 'overlay', viewBox: `0 0 ${image.width} ${image.height}`, role: 'img', tabindex: 0,
    'aria-label': sentence(number, image), 'aria-describedby': 'tip',
  })
  const grid = svg('g', { transform: `translate(${area.x} ${area.y}) scale(${area.width / cols} ${area.height / rows})` })
  const seen = new Set(image.groups.flatMap((g) => g.members))
  const dropped = patches(rows * cols).filter((i) => !seen.has(i))
  if (dropped.length) grid.append(svg('path', { class: 'dropped', d: cells(dropped, cols) }))
  const shade = svg('path', { class: 'shade' })
  grid.append(shade)
  const groups = image.kept + image.merged === image.tokens && image.groups.every(single) ? [] : draw(grid, image.groups, rows, cols)
  root.append(svg('path', { class: 'dropped', d: outside(image), 'fill-rule': 'evenodd' }), grid)
  if (groups.length) lightUp(root, groups, (members) => {
    const lit = new Set(members)
    shade.setAttribute('d', members ? cells(patches(rows * cols).filter((i) => !lit.has(i)), cols) : '')
  })
  return root
}

const patches = (n) => Array.from({ length: n }, (_, i) => i)

// draw draws the groups: those of one patch that was kept in white, the others in colours.
function draw(grid, groups, rows, cols) {
  const hues = hueOf(groups, rows, cols)
  return groups.map((g, i) => {
    const node = svg('g', { class: single(g) ? 'group kept' : 'group merged' })
    const edge = outline(g.members, cols)
    const fill = svg('path', { class: 'fill', d: cells(g.members, cols) })
    const line = svg('path', { class: 'line', d: edge })
    if (!single(g)) {
      fill.setAttribute('fill', `hsl(${hues[i]} 90% 60%)`)
      line.setAttribute('stroke', `hsl(${hues[i]} 95% 65%)`)
    }
    node.append(fill, svg('path', { class: 'casing', d: edge }), line)
    if (g.members.includes(g.position) && !single(g)) {
      const x = g.position % cols + 0.5, y = Math.floor(g.position / cols) + 0.5
      node.append(svg('circle', { class: 'anchor', cx: x, cy: y, r: 0.28 }))
    }
    grid.append(node)
    return { node, members: g.members }
  })
}

// hueOf gives every merged group a hue that no group next to it has: a greedy colouring, the groups
// with most neighbours first, then hues as far apart as the number of colours allows. Colours that
// meet most often get the hues that differ most.
function hueOf(groups, rows, cols) {
  const at = new Array(rows * cols).fill(-1)
  groups.forEach((g, i) => { if (!single(g)) for (const m of g.members) at[m] = i })
  const next = groups.map(() => new Set())
  const meet = (a, b) => {
    if (a >= 0 && b >= 0 && a !== b) {
      next[a].add(b)
      next[b].add(a)
    }
  }
  for (let y = 0; y < rows; y++) {
    for (let x = 0; x < cols; x++) {
      const m = at[y * cols + x]
      if (x + 1 < cols) meet(m, at[y * cols + x + 1])
      if (y + 1 < rows) {
        for (const d of [-1, 0, 1]) if (x + d >= 0 && x + d < cols) meet(m, at[(y + 1) * cols + x + d])
      }
    }
  }
  const colour = new Map()
  for (const i of groups.map((_, i) => i).sort((a, b) => next[b].size - next[a].size || a - b)) {
    const taken = new Set([...next[i]].map((n) => colour.get(n)))
    let c = 0
    while (taken.has(c)) c++
    colour.set(i, c)
  }
  const order = arrange(Math.max(1, ...[...colour.values()].map((c) => c + 1)), next, colour)
  return groups.map((_, i) => order[colour.get(i)])
}

// arrange returns the hue of each of n colours. It begins with hues in order and exchanges two as
// long as that brings hues that meet further apart.
function arrange(n, next, colour) {
  const meets = Array.from({ length: n }, () => new Array(n).fill(0))
  next.forEach((of, i) => { for (const j of of) meets[colour.get(i)][colour.get(j)]++ })
  const place = patches(n)
  const near = (a, b) => 1 / Math.min(Math.abs(a - b), n - Math.abs(a - b)) ** 2
  const cost = (a) => place.reduce((sum, at, b) => b === a ? sum : sum + meets[a][b] * near(place[a], at), 0)
  for (let round = 0; round < 20; round++) {
    let better = false
    for (let a = 0; a < n; a++) {
      for (let b = a + 1; b < n; b++) {
        const before = cost(a) + cost(b)
        const swap = () => { [place[a], place[b]] = [place[b], place[a]] }
        swap()
        if (cost(a) + cost(b) < before - 1e-9) better = true
        else swap()
      }
    }
    if (!better) break
  }
  return place.map((p) => Math.round(360 * p / n + 20) % 360)
}

// cells covers patches, a run of a row at a time.
function cells(members, cols) {
  const on = new Set(members)
  let d = ''
  for (const m of on) {
    const x = m % cols, y = Math.floor(m / cols)
    if (x > 0 && on.has(m - 1)) continue
    let w = 1
    while (x + w < cols && on.has(m + w)) w++
    d += `M${x} ${y}h${w}v1h${-w}z`
  }
  return d
}

const inset = 0.07 // of a patch: the lines of groups that touch lie next to each other

// outline is the border between the patches of a group and the others, just inside of them.
function outline(members, cols) {
  const on = new Set(members)
  let d = ''
  for (const m of on) {
    const x = m % cols, y = Math.floor(m / cols)
    const left = x > 0 && on.has(m - 1), right = x < cols - 1 && on.has(m + 1)
    const above = on.has(m - cols), below = on.has(m + cols)
    const x0 = left ? x : x + inset, x1 = right ? x + 1 : x + 1 - inset
    const y0 = above ? y : y + inset, y1 = below ? y + 1 : y + 1 - inset
    if (!above) d += `M${x0} ${y0}H${x1}`
    if (!below) d += `M${x0} ${y1}H${x1}`
    if (!left) d += `M${x0} ${y0}V${y1}`
    if (!right) d += `M${x1} ${y0}V${y1}`
  }
  return d
}

// lightUp shows what a group stands for: under the mouse, by touch, on focus and with arrow keys.
function lightUp(root, groups, shade) {
  const tip = $('tip')
  let at = -1
  const dark = () => {
    root.classList.remove('lit')
    groups[at]?.node.classList.remove('on')
    shade(null)
    at = -1
    tip.hidden = true
  }
  const light = (i, x, y) => {
    if (i !== at) {
      dark()
      at = i
      const { node, members } = groups[i]
      root.classList.add('lit')
      node.classList.add('on')
      shade(members)
      tip.textContent = many(members.length, 'patch', 'patches') + ', one token'
      tip.hidden = false
    }
    const r = groups[i].node.getBoundingClientRect()
    const left = (x ?? r.x + r.width / 2) + 12, top = (y ?? r.y + r.height / 2) + 16
    tip.style.left = Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 4)) + 'px'
    tip.style.top = Math.max(4, Math.min(top, innerHeight - tip.offsetHeight - 4)) + 'px'
  }
  groups.forEach((g, i) => {
    g.node.addEventListener('pointermove', (e) => light(i, e.clientX, e.clientY))
    g.node.addEventListener('pointerdown', (e) => light(i, e.clientX, e.clientY))
  })
  const largest = groups.reduce((best, g, i) => g.members.length > groups[best].members.length ? i : best, 0)
  root.addEventListener('pointerleave', () => { if (document.activeElement !== root) dark() })
  root.addEventListener('focus', () => { if (at < 0) light(largest) })
  root.addEventListener('blur', dark)
  root.addEventListener('keydown', (e) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key]
    if (step) {
      e.preventDefault()
      light(at < 0 ? largest : (at + step + groups.length) % groups.length)
    } else if (e.key === 'Escape') dark()
  })
}

// framed is a picture with a report's overlay over it.
export function framed(url, picture, number, image, reached) {
  const over = overlay(number, image)
  if (!reached) over.removeAttribute('tabindex')
  const box = element('div', { class: 'frame' }, element('img', { src: url, alt: '' }), over)
  box.style.setProperty('--ratio', picture.width / picture.height)
  return box
}
