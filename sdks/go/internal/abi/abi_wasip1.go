// Package abi moves values between Go and the memory layout of the component model's canonical ABI.
//
//	WIT               Go
//	record, tuple     a struct, or an array of two
//	list<T>           []T
//	option<T>         *T
//	enum              uint8
//	variant, result   a type that is a Choice
package abi

import (
	"reflect"
	"runtime"
	"unsafe"
)

// Choice is a case of a variant, and its value.
type Choice struct {
	Tag uint8
	// Nil if the case has no value.
	Val any
}

// Cased is a variant: a struct type whose underlying type is Choice.
type Cased interface {
	// Cases returns the type of each case, or nil for a case without a value.
	Cases() []reflect.Type
}

// Result is WIT's result<T, E>. Use struct{} where there is no value.
type Result[T, E any] Choice

// Cases returns both types.
func (Result[T, E]) Cases() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[T](), reflect.TypeFor[E]()}
}

// Ok is the successful result.
func Ok[T, E any](value T) Result[T, E] { return Result[T, E]{0, value} }

// Err is the failed result.
func Err[T, E any](value E) Result[T, E] { return Result[T, E]{1, value} }

var (
	pinner runtime.Pinner
	// Go's runtime initializes variables before packages.
	isStarted = false
)

func init() { isStarted = true }

// Free frees what the last call allocated.
func Free() { pinner.Unpin() }

// Allocate returns zeroed memory, aligned to 8, that stays until Free.
func Allocate(size uintptr) unsafe.Pointer {
	if size == 0 {
		return unsafe.Pointer(uintptr(8))
	}
	memory := unsafe.Pointer(unsafe.SliceData(make([]uint64, (size+7)/8)))
	pinner.Pin(memory)
	return memory
}

func aligned(at, align uintptr) uintptr { return (at + align - 1) &^ (align - 1) }

var cased = reflect.TypeFor[Cased]()

func casesOf(of reflect.Type) []reflect.Type {
	return reflect.Zero(of).Interface().(Cased).Cases()
}

// layout returns the size and the alignment of a type.
func layout(of reflect.Type) (size, align uintptr) {
	switch {
	case of == nil:
		return 0, 1
	case of.Implements(cased):
		size, align = payload(casesOf(of))
		return aligned(aligned(1, align)+size, align), align
	}
	switch of.Kind() {
	case reflect.String, reflect.Slice:
		return 8, 4
	case reflect.Pointer:
		size, align = layout(of.Elem())
		return aligned(aligned(1, align)+size, align), align
	case reflect.Array:
		size, align = layout(of.Elem())
		return size * uintptr(of.Len()), align
	case reflect.Struct:
		align = 1
		for at := range of.NumField() {
			fieldSize, fieldAlign := layout(of.Field(at).Type)
			size, align = aligned(size, fieldAlign)+fieldSize, max(align, fieldAlign)
		}
		return aligned(size, align), align
	default:
		return of.Size(), of.Size()
	}
}

func payload(cases []reflect.Type) (size, align uintptr) {
	align = 1
	for _, of := range cases {
		caseSize, caseAlign := layout(of)
		size, align = max(size, caseSize), max(align, caseAlign)
	}
	return size, align
}

// Store writes a value to new memory, and returns its address.
func Store(value any) uint32 {
	of := reflect.ValueOf(value)
	size, _ := layout(of.Type())
	at := Allocate(size)
	store(at, of)
	return address(at)
}

// Area returns new memory for a value of type T, to which an import writes.
func Area[T any]() uint32 {
	size, _ := layout(reflect.TypeFor[T]())
	return address(Allocate(size))
}

// Load reads a value.
func Load[T any](at uint32) T {
	var value T
	load(pointer(at), reflect.ValueOf(&value).Elem())
	return value
}

// String returns the address and the length of a text.
func String(text string) (at, length uint32) {
	memory := Allocate(uintptr(len(text)))
	copy(unsafe.Slice((*byte)(memory), len(text)), text)
	return address(memory), uint32(len(text))
}

// Option returns the case, the address and the length of an optional text.
func Option(text *string) (some, at, length uint32) {
	if text == nil {
		return 0, 0, 0
	}
	at, length = String(*text)
	return 1, at, length
}

// Text reads a text.
func Text(at, length uint32) string {
	return string(unsafe.Slice((*byte)(pointer(at)), length))
}

func address(at unsafe.Pointer) uint32 { return uint32(uintptr(at)) }

func pointer(at uint32) unsafe.Pointer { return unsafe.Pointer(uintptr(at)) }

func write[T any](at unsafe.Pointer, value T) { *(*T)(at) = value }

func store(at unsafe.Pointer, value reflect.Value) {
	of := value.Type()
	if of.Implements(cased) {
		cases := casesOf(of)
		tag := value.Field(0).Uint()
		write(at, uint8(tag))
		if _, align := payload(cases); cases[tag] != nil && value.Field(1).Elem().IsValid() {
			store(unsafe.Add(at, aligned(1, align)), value.Field(1).Elem())
		}
		return
	}
	switch of.Kind() {
	case reflect.Bool:
		write(at, value.Bool())
	case reflect.Uint8:
		write(at, uint8(value.Uint()))
	case reflect.Uint16:
		write(at, uint16(value.Uint()))
	case reflect.Uint32:
		write(at, uint32(value.Uint()))
	case reflect.Uint64:
		write(at, value.Uint())
	case reflect.Float64:
		write(at, value.Float())
	case reflect.String:
		text, length := String(value.String())
		write(at, [2]uint32{text, length})
	case reflect.Slice:
		size, _ := layout(of.Elem())
		items := Allocate(size * uintptr(value.Len()))
		if of.Elem().Kind() == reflect.Uint8 {
			copy(unsafe.Slice((*byte)(items), value.Len()), value.Bytes())
		} else {
			for index := range value.Len() {
				store(unsafe.Add(items, size*uintptr(index)), value.Index(index))
			}
		}
		write(at, [2]uint32{address(items), uint32(value.Len())})
	case reflect.Pointer:
		if !value.IsNil() {
			_, align := layout(of.Elem())
			write(at, uint8(1))
			store(unsafe.Add(at, aligned(1, align)), value.Elem())
		}
	case reflect.Array:
		size, _ := layout(of.Elem())
		for index := range of.Len() {
			store(unsafe.Add(at, size*uintptr(index)), value.Index(index))
		}
	case reflect.Struct:
		var offset uintptr
		for index := range of.NumField() {
			size, align := layout(of.Field(index).Type)
			offset = aligned(offset, align)
			store(unsafe.Add(at, offset), value.Field(index))
			offset += size
		}
	default:
		panic("the canonical ABI has no " + of.String())
	}
}

func load(at unsafe.Pointer, value reflect.Value) {
	of := value.Type()
	if of.Implements(cased) {
		cases := casesOf(of)
		tag := *(*uint8)(at)
		value.Field(0).SetUint(uint64(tag))
		if inner := cases[tag]; inner != nil {
			_, align := payload(cases)
			loaded := reflect.New(inner).Elem()
			load(unsafe.Add(at, aligned(1, align)), loaded)
			value.Field(1).Set(loaded)
		}
		return
	}
	switch of.Kind() {
	case reflect.Bool:
		value.SetBool(*(*uint8)(at) != 0)
	case reflect.Uint8:
		value.SetUint(uint64(*(*uint8)(at)))
	case reflect.Uint16:
		value.SetUint(uint64(*(*uint16)(at)))
	case reflect.Uint32:
		value.SetUint(uint64(*(*uint32)(at)))
	case reflect.Uint64:
		value.SetUint(*(*uint64)(at))
	case reflect.String:
		parts := *(*[2]uint32)(at)
		value.SetString(Text(parts[0], parts[1]))
	case reflect.Slice:
		parts := *(*[2]uint32)(at)
		items := reflect.MakeSlice(of, int(parts[1]), int(parts[1]))
		size, _ := layout(of.Elem())
		for index := range items.Len() {
			load(unsafe.Add(pointer(parts[0]), size*uintptr(index)), items.Index(index))
		}
		value.Set(items)
	case reflect.Pointer:
		if *(*uint8)(at) != 0 {
			_, align := layout(of.Elem())
			loaded := reflect.New(of.Elem())
			load(unsafe.Add(at, aligned(1, align)), loaded.Elem())
			value.Set(loaded)
		}
	case reflect.Array:
		size, _ := layout(of.Elem())
		for index := range of.Len() {
			load(unsafe.Add(at, size*uintptr(index)), value.Index(index))
		}
	case reflect.Struct:
		var offset uintptr
		for index := range of.NumField() {
			size, align := layout(of.Field(index).Type)
			offset = aligned(offset, align)
			load(unsafe.Add(at, offset), value.Field(index))
			offset += size
		}
	default:
		panic("the canonical ABI has no " + of.String())
	}
}
