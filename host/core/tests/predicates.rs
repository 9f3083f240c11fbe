//! What a predicate may cost against an allocator that counts: the interpreter allocates for each value that it copies,
//! and hardly ever does anything else for long. So the prices are right if what is allocated never exceeds what was
//! paid for.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
};

use pilothouse_core::{
    key::TypeMeta,
    object::Object,
    predicate::{BUDGET, Condition, Expression, Predicate, Test},
    store::Change,
};
use serde_json::json;

thread_local! {
    /// Allocations of this thread, and their bytes.
    static MADE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

struct Counting;

#[expect(unsafe_code, reason = "an allocator cannot be written without; all is handed on to the system's")]
// SAFETY: each call is passed to `System` as it came, and counting touches no memory of the caller's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (calls, bytes) = MADE.get();
        MADE.set((calls + 1, bytes + layout.size() as u64));
        // SAFETY: as our caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as our caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A unit stands for some 20 ns. An allocation with all that comes with it takes about as long.
const ALLOCATIONS_EACH: u64 = 1;
/// Bytes that are allocated for a unit: some 20 ns of copying.
const BYTES_EACH: u64 = 50;
/// What any judgement may allocate for nothing: the functions, the scope, and messages.
const FOR_NOTHING: (u64, u64) = (1_000, 1 << 20);

/// Each of these is asked of all objects below. What has no answer counts as well.
const EXPRESSIONS: &[&str] = &[
    "object.data.map(k, k).size() == 0",
    "object.data.map(k, object.data[k]).size() == 0",
    "object.data.filter(k, k < 'k2').size() == 0",
    "object.data.all(k, object.data[k] == 'x')",
    "object.data.exists(k, k == 'none')",
    "object.list.all(a, object.list.sum() > 0)",
    "object.list.map(a, a + 1).map(a, a + 1).map(a, a + 1).size() == 0",
    "object.list.filter(a, a < 0).size() == 0",
    "object.list.reverse().reverse().reverse().reverse() == object.list",
    "object.list.sort().sort().sort().sort() == object.list",
    "object.list.all(a, object.list.reverse().size() > 0)",
    "object.list.all(a, object.list.sort().size() > 0)",
    "object.list.exists_one(a, a in object.list)",
    "object.list + object.list + object.list + object.list == object.list",
    "[object, object, object, object, object, object, object, object].size() == 1",
    "{'a': object, 'b': object, 'c': object} == {'a': object, 'b': object, 'c': object}",
    "object.names.distinct().size() == 0",
    "sets.equivalent(object.names, object.names)",
    "object.names.join(',').split(',').size() == 0",
    "object.names.map(n, n.upperAscii()).map(n, n + n).size() == 0",
    "object.names.all(n, n.matches('^name-[0-9]+$'))",
    "object.names.all(n, n.find('[0-9]+') != '')",
    "object.text.split('').size() == 0",
    "object.text.replace('x', object.text).size() == 0",
    "object.text.findAll('x').size() == 0",
    "[object.text].map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a).size() == 0",
    "object - 1 == 1 || object - 1 == 1 || object - 1 == 1 || object - 1 == 1 || object - 1 == 1",
    "-object == 1 || -object == 1 || -object == 1 || -object == 1",
    "object",
    "object == old || object.data == old.data",
    "object.list.all(a, object.list.all(b, object.list.all(c, a + b + c < 0 || true)))",
];

fn objects() -> Vec<Arc<Object>> {
    let object = |data: usize, list: usize, names: usize, text: usize| {
        let data: serde_json::Map<_, _> = (0..data).map(|i| (format!("k{i}"), json!("x".repeat(40)))).collect();
        let list: Vec<_> = (0..list).collect();
        let names: Vec<_> = (0..names).map(|i| format!("name-{i}")).collect();
        let json = json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"},
            "data": data, "list": list, "names": names, "text": "x".repeat(text),
        });
        Arc::new(Object::parse(json.to_string().as_bytes(), &TypeMeta::new("v1", "ConfigMap")).unwrap())
    };
    vec![object(1, 1, 1, 1), object(50, 50, 50, 1_000), object(2_000, 10, 10, 0), object(10, 5_000, 2_000, 500_000)]
}

#[test]
fn invariant_8_what_an_expression_does_is_no_more_than_it_paid_for() {
    for new in objects() {
        let change = Change { old: Some(new.clone()), new: Some(new), missed: false };
        for text in EXPRESSIONS {
            let test = Test::Cel(Expression::compile(text).unwrap());
            // As many as a manifest may have.
            let all = vec![vec![Condition { test, negated: false }; 16]; 16];
            let predicate = Predicate::new(all);
            let before = MADE.get();
            let judgement = predicate.judge(&change, &mut |_| {});
            let (allocations, bytes) = (MADE.get().0 - before.0, MADE.get().1 - before.1);
            let spent = judgement.spent;
            let most = (spent * ALLOCATIONS_EACH + FOR_NOTHING.0, spent * BYTES_EACH + FOR_NOTHING.1);
            let size = change.object().json_len();
            assert!(
                allocations <= most.0 && bytes <= most.1,
                "{text} of {size} bytes: {spent} units, {allocations} allocations of {bytes} bytes"
            );
        }
    }
    const { assert!(BUDGET <= 100_000, "a judgement takes two milliseconds at most") };
}
