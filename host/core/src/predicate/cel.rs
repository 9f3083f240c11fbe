//! CEL expressions over `object` and `old`: from their text to a form that can be evaluated safely.
//!
//! The expression comes from a plugin and the objects from the cluster. Neither may slow down, bloat or stop the host.
//! So an expression is rewritten after parsing ([`meter`]): operations whose cost depends on the data pay for it. All
//! expressions of one judgement share [`BUDGET`]; once it is spent, each of them fails.
//!
//! ```text
//! object.items.exists(i, i == old.x)
//!   └─► charge(object["items"]).exists(i, tick() && charge(i) == charge(old["x"]))
//! ```
//!
//! The objects are converted to values once per judgement ([`Sides`]), within a separate bound ([`READING`]).
//!
//! Selecting a field of a value that has no fields fails, as in CEL; the bare interpreter would return false.

use std::{
    collections::HashMap,
    fmt,
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use kube_cel::{
    KubeCelExt,
    cel::{
        Context, ExecutionError, Value,
        common::types::CelBool,
        objects::{Key, Map},
        parser::{Expression as Ast, Parser},
    },
};
use serde::de::{self, Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::field::FieldPath;

mod fields;
mod meter;

/// Largest expression in bytes. The parser recurses with the nesting: a chain of 500 operators needs less than half of
/// a stack of 2 MiB.
const MAX_LENGTH: usize = 1024;
/// Largest number of conditionals in one expression: the parser panics at about a hundred nested ones.
const MAX_CONDITIONALS: usize = 16;
/// Largest object that is evaluated, in bytes: twice what etcd holds.
const MAX_OBJECT: usize = 3 << 20;
/// Units that all expressions of one judgement may spend: about two milliseconds. A unit is some 20 ns of a core in a
/// release build; `meter` holds the prices.
pub const BUDGET: u64 = 100_000;
/// Units that converting both objects may cost: about twenty milliseconds, for some 50,000 values. Bounded separately,
/// so that an expression that reads little of a large object works.
const READING: u64 = 1_000_000;

/// A compiled CEL expression over `object` and `old`. Expressions with equal texts are equal.
#[derive(Clone)]
pub struct Expression {
    compiled: Arc<Compiled>,
}

struct Compiled {
    text: Box<str>,
    ast: Ast,
    /// Sides that it does not name are not converted.
    reads_object: bool,
    reads_old: bool,
    /// Fields of either side that it reads.
    fields: Box<[FieldPath]>,
    failures: AtomicU64,
}

/// A text that is not a valid expression over `object` and `old`, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot compile CEL expression: {0}")]
pub struct ExpressionError(pub String);

/// A failed evaluation of an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CEL expression `{expression}` failed ({count} times by now): {problem}")]
pub struct EvaluationError {
    /// The expression's text.
    pub expression: String,
    /// The reason for the last failure.
    pub problem: String,
    /// Number of failures so far.
    pub count: u64,
}

/// Functions of CEL and Kubernetes, and those that meter.
static BASE: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut base = Context::default().with_all();
    meter::register(&mut base);
    base
});

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// Fails if it is too long, is not CEL, or uses an unknown variable or function.
    pub fn compile(text: &str) -> Result<Self, ExpressionError> {
        if text.len() > MAX_LENGTH {
            return Err(ExpressionError(format!("it has {} bytes; at most {MAX_LENGTH} are taken", text.len())));
        }
        if text.matches('?').count() > MAX_CONDITIONALS {
            return Err(ExpressionError(format!("it has more than {MAX_CONDITIONALS} conditionals")));
        }
        if repeats_a_sign(text) {
            let what = "write `!` and `-` once: the parser takes two of them for one";
            return Err(ExpressionError(what.to_owned()));
        }
        // The parser panics on some unexpected inputs.
        let parsed = catch_unwind(|| Parser::default().parse(text));
        let parsed = parsed.map_err(|_| ExpressionError("the parser gave up on it".to_owned()))?;
        let ast = parsed.map_err(|errors| {
            let first = errors.errors.first();
            ExpressionError(first.map_or_else(|| "it is no CEL".to_owned(), |error| error.msg.replace('\n', " ")))
        })?;
        let [reads_object, reads_old] = ["object", "old"].map(|name| ast.references().has_variable(name));
        let fields = fields::read(&ast).into();
        let ast = meter::rewritten(ast).map_err(ExpressionError)?;
        let failures = AtomicU64::new(0);
        Ok(Self { compiled: Arc::new(Compiled { text: text.into(), ast, reads_object, reads_old, fields, failures }) })
    }

    /// Returns the fields of either side that its text reads; each after the fields that contain it.
    pub fn fields(&self) -> &[FieldPath] {
        &self.compiled.fields
    }

    /// Returns the expression's text.
    pub fn text(&self) -> &str {
        &self.compiled.text
    }

    /// Evaluates it within the rest of the budget.
    ///
    /// # Errors
    /// The reason for the failure.
    fn evaluate(&self, sides: &Sides) -> Result<bool, Problem> {
        let Compiled { ast, reads_object, reads_old, .. } = &*self.compiled;
        for (reads, side) in [(*reads_object, &sides.object), (*reads_old, &sides.old)] {
            if reads {
                side.clone().map_err(Problem::Text)?;
            }
        }
        // A panic in an extension must fail only this evaluation.
        let answer = catch_unwind(AssertUnwindSafe(|| {
            // Not `Value::resolve`, which would copy an answer of any size.
            let answer = Value::resolve_val(ast, &sides.context).map_err(Problem::Evaluation)?;
            let of_type = || Problem::Text(format!("it is of type {}, and not a boolean", answer.get_type().name()));
            answer.downcast_ref::<CelBool>().map(|answer| *answer.inner()).ok_or_else(of_type)
        }));
        answer.unwrap_or_else(|_| Err(Problem::Text("the interpreter gave up on it".to_owned())))
    }

    /// Evaluates it. A failure counts as true, and `failed` is called at the 1st, 2nd, 4th, 8th… failure.
    pub(super) fn holds(&self, sides: &Sides, failed: &mut dyn FnMut(EvaluationError)) -> Option<bool> {
        match self.evaluate(sides) {
            Ok(answer) => Some(answer),
            Err(problem) => {
                let count = self.compiled.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                if count.is_power_of_two() {
                    failed(EvaluationError { expression: self.text().to_owned(), problem: problem.into_text(), count });
                }
                None
            }
        }
    }
}

/// The reason for a failure. Its text is built only on demand: errors of the interpreter quote values.
enum Problem {
    Text(String),
    Evaluation(ExecutionError),
}

impl Problem {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Evaluation(error) => excerpt(&error.to_string()),
        }
    }
}

/// Runs `evaluate` with [`BUDGET`] to spend. Also returns what was spent.
pub(super) fn with_budget<T>(evaluate: impl FnOnce() -> T) -> (T, u64) {
    meter::with_budget(BUDGET, evaluate)
}

/// Returns `true` once the budget was exceeded.
pub(super) fn is_spent() -> bool {
    meter::is_spent()
}

/// Returns `true` for `!!x` and `--x`, which cel 0.13 reads as `!x` and `-x`.
fn repeats_a_sign(text: &str) -> bool {
    let (mut quote, mut escaped, mut signs, mut after_operand) = (None, false, 0, false);
    for c in text.chars() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if c == open => (quote, after_operand) = (None, true),
            (Some(_), _) => {}
            (None, '"' | '\'') => (quote, signs) = (Some(c), 0),
            (None, _) if c.is_whitespace() => {}
            // The first one after an operand is a subtraction.
            (None, '-') if after_operand => after_operand = false,
            (None, '!' | '-') => {
                signs += 1;
                if signs == 2 {
                    return true;
                }
            }
            (None, _) => (signs, after_operand) = (0, c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '}')),
        }
    }
    false
}

/// Shortens an interpreter's error, which quotes values and perhaps whole objects.
fn excerpt(text: &str) -> String {
    let short: String = text.chars().take(200).collect();
    if short.len() < text.len() { short + "…" } else { short }
}

/// Both sides of a change as values, in the scope of expressions. Converted once for all of them.
pub(super) struct Sides {
    context: Context<'static>,
    /// The reason if a side has no value.
    object: Result<(), String>,
    old: Result<(), String>,
    spent: u64,
    too_costly: bool,
}

impl Sides {
    /// Converts the sides that one of the expressions names.
    pub(super) fn new<'e>(
        old: Option<&str>,
        new: Option<&str>,
        expressions: impl Iterator<Item = &'e Expression>,
    ) -> Self {
        let (mut reads_object, mut reads_old) = (false, false);
        for expression in expressions {
            reads_object |= expression.compiled.reads_object;
            reads_old |= expression.compiled.reads_old;
        }
        let mut context = BASE.new_inner_scope();
        let mut side = |name: &str, reads: bool, json: Option<&str>| -> Result<(), String> {
            if reads {
                context.add_variable_from_value(name, value(json)?);
            }
            Ok(())
        };
        let ((object, old, too_costly), spent) = meter::with_budget(READING, || {
            let (object, old) = (side("object", reads_object, new), side("old", reads_old, old));
            (object, old, meter::is_spent())
        });
        Self { context, object, old, spent, too_costly }
    }

    /// Returns the units spent on the conversion.
    pub(super) fn spent(&self) -> u64 {
        self.spent
    }

    /// Returns `true` if the conversion cost more than its bound.
    pub(super) fn are_too_costly(&self) -> bool {
        self.too_costly
    }
}

fn value(json: Option<&str>) -> Result<Value, String> {
    match json {
        None => Ok(Value::Null),
        Some(json) if json.len() > MAX_OBJECT => Err(format!("the object has more than {MAX_OBJECT} bytes")),
        Some(json) => serde_json::from_str(json).map(|Json(value)| value).map_err(|error| error.to_string()),
    }
}

/// JSON as CEL sees it: whole numbers that fit are `int`.
struct Json(Value);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        meter::read(meter::SCALAR).map_err(D::Error::custom)?;
        deserializer.deserialize_any(JsonVisitor).map(Json)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::UInt(value), Value::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        meter::read(meter::text(value.len())).map_err(E::custom)?;
        Ok(Value::String(Arc::new(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Json(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(Arc::new(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = HashMap::new();
        while let Some((name, Json(value))) = members.next_entry::<String, Json>()? {
            meter::read(meter::member(name.len())).map_err(A::Error::custom)?;
            map.insert(Key::String(Arc::new(name)), value);
        }
        Ok(Value::Map(Map { map: Arc::new(map) }))
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Expression {}

impl Hash for Expression {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text().hash(state);
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?})", self.text())
    }
}

#[cfg(test)]
mod tests;
