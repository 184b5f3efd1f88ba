package checkpoint

// fault is an error of one of errs' kinds, whose text is its own.
type fault struct {
	error
	kind error
}

func (f fault) Unwrap() []error { return []error{f.error, f.kind} }

// As makes err, which may be nil, an error of a kind: [errs.ErrNotFound], [errs.ErrUnsupported] or
// [errs.ErrDamaged]. Its text stays.
func As(kind, err error) error {
	if err == nil {
		return nil
	}
	return fault{err, kind}
}
