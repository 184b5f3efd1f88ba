//go:build !amd64 || purego

package kernel

func attend(p *Pool, a *Attention) { attendGo(p, a) }
