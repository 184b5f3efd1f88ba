// The camera, where there is one.

import { $ } from './dom.js'

// findCamera shows the button while there is a camera.
export async function findCamera() {
  try {
    navigator.mediaDevices.ondevicechange = findCamera
    const all = await navigator.mediaDevices.enumerateDevices()
    $('camera').hidden = !all.some((d) => d.kind === 'videoinput')
  } catch { $('camera').hidden = true } // no camera, or a page without TLS
}

// openCamera calls take with the picture that is taken.
export async function openCamera(take) {
  const film = await navigator.mediaDevices.getUserMedia({ video: { facingMode: 'environment' } })
  const box = $('viewfinder')
  $('video').srcObject = film
  box.showModal()
  box.onclose = () => film.getTracks().forEach((t) => t.stop())
  $('leave').onclick = () => box.close()
  $('shoot').onclick = () => {
    const v = $('video'), c = document.createElement('canvas')
    c.width = v.videoWidth
    c.height = v.videoHeight
    c.getContext('2d').drawImage(v, 0, 0)
    c.toBlob((b) => take(new File([b], 'camera.jpg', { type: b.type })), 'image/jpeg', 0.92)
    box.close()
  }
}
