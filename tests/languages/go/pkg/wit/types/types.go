// Package types has the types that the bindings of `wit-bindgen go` use.
package types

// Unit is the type of a result without a value.
type Unit struct{}

// Tuple2 is a tuple of two members.
type Tuple2[A, B any] struct {
	F0 A
	F1 B
}

// Tuple3 is a tuple of three members.
type Tuple3[A, B, C any] struct {
	F0 A
	F1 B
	F2 C
}

// Tuple4 is a tuple of four members.
type Tuple4[A, B, C, D any] struct {
	F0 A
	F1 B
	F2 C
	F3 D
}

const (
	OptionNone = 0
	OptionSome = 1
	ResultOk   = 0
	ResultErr  = 1
)

// Option is a value, or none.
type Option[T any] struct {
	tag   uint8
	value T
}

func Some[T any](value T) Option[T] { return Option[T]{OptionSome, value} }
func None[T any]() Option[T]        { return Option[T]{} }
func (o Option[T]) Tag() uint8      { return o.tag }
func (o Option[T]) Some() T         { return o.value }

// Result is a value, or an error.
type Result[T, E any] struct {
	tag uint8
	ok  T
	err E
}

func Ok[T, E any](value T) Result[T, E]  { return Result[T, E]{tag: ResultOk, ok: value} }
func Err[T, E any](value E) Result[T, E] { return Result[T, E]{tag: ResultErr, err: value} }
func (r Result[T, E]) Tag() uint8        { return r.tag }
func (r Result[T, E]) Ok() T             { return r.ok }
func (r Result[T, E]) Err() E            { return r.err }
