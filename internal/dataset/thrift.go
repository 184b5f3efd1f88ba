package dataset

import (
	"encoding/binary"
	"errors"
)

// Thrift's compact protocol, as far as needed to find the end of a struct. Lists and texts longer
// than the remaining bytes are errors, so a decoder may allocate the sizes in the data.

// errShort is returned if the bytes end within the struct.
var errShort = errors.New("cut short")

var errMalformed = errors.New("malformed")

const maxThriftDepth = 32

// structLen returns the length in bytes of the struct at the start of data.
func structLen(data []byte) (int, error) {
	s := skimmer{data: data}
	err := s.structure(0)
	return s.at, err
}

type skimmer struct {
	data []byte
	at   int
}

func (s *skimmer) byte() (byte, error) {
	if s.at >= len(s.data) {
		return 0, errShort
	}
	s.at++
	return s.data[s.at-1], nil
}

func (s *skimmer) varint() (uint64, error) {
	v, n := binary.Uvarint(s.data[s.at:])
	switch {
	case n == 0:
		return 0, errShort
	case n < 0:
		return 0, errMalformed
	}
	s.at += n
	return v, nil
}

func (s *skimmer) skip(n uint64) error {
	if n > uint64(len(s.data)-s.at) {
		return errShort
	}
	s.at += int(n)
	return nil
}

func (s *skimmer) structure(depth int) error {
	if depth > maxThriftDepth {
		return errMalformed
	}
	for {
		head, err := s.byte()
		if err != nil || head == 0 {
			return err
		}
		if head>>4 == 0 { // the field's number follows
			if _, err := s.varint(); err != nil {
				return err
			}
		}
		if kind := head & 15; kind > 2 { // 1 and 2 are true and false
			if err := s.value(kind, depth); err != nil {
				return err
			}
		}
	}
}

// value skips a value of a kind. In lists, a boolean takes one byte.
func (s *skimmer) value(kind byte, depth int) error {
	switch kind {
	case 1, 2, 3:
		return s.skip(1)
	case 4, 5, 6:
		_, err := s.varint()
		return err
	case 7:
		return s.skip(8)
	case 8:
		n, err := s.varint()
		if err != nil {
			return err
		}
		return s.skip(n)
	case 9, 10:
		head, err := s.byte()
		if err != nil {
			return err
		}
		n := uint64(head >> 4)
		if n == 15 {
			if n, err = s.varint(); err != nil {
				return err
			}
		}
		return s.items(n, head&15, 0, depth)
	case 11:
		n, err := s.varint()
		if err != nil || n == 0 {
			return err
		}
		kinds, err := s.byte()
		if err != nil {
			return err
		}
		return s.items(n, kinds>>4, kinds&15, depth)
	case 12:
		return s.structure(depth + 1)
	}
	return errMalformed
}

// items skips n values of kind a, each followed by one of kind b unless b is 0.
func (s *skimmer) items(n uint64, a, b byte, depth int) error {
	if depth > maxThriftDepth {
		return errMalformed
	}
	if n > uint64(len(s.data)-s.at) {
		return errShort
	}
	for range n {
		if err := s.value(a, depth+1); err != nil {
			return err
		}
		if b != 0 {
			if err := s.value(b, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}
