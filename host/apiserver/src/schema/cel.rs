//! `x-kubernetes-validations`: CEL expressions that a value must satisfy.
//!
//! `kube-cel` has the language and Kubernetes' functions. This module adds the rules of the API server: the names of
//! fields in expressions, the types of strings with a format, when a rule about a change applies, and the messages. The
//! calling walk (`validate`) finds `oldSelf`, because only it knows which items of two lists correspond.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use chrono::DateTime;
use kube_cel::{
    KubeCelExt,
    cel::{
        Context, ExecutionError, Program,
        objects::{Key, Map, OptionalValue, Value as CelValue},
    },
};
use serde_json::{Map as Fields, Value};

use super::{
    Cause, Reason,
    formats::go_duration,
    node::{Additional, Node},
};

/// Upper bound for the bytes of an expression, which bounds its depth. Several times the longest in use.
const LENGTH: usize = 8 << 10;

/// Bytes of stack for parsing and evaluating. Measured: 2 MiB suffice for a chain of 1,000 operators, but not of 3,000.
const STACK: usize = 64 << 20;

/// Runs work that recurses as deep as an expression on a thread with a large stack. A panic of the parser ends only
/// this thread; a hundred nested conditionals cause one. Returns `None` after a panic.
pub(crate) fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cel".to_owned()).stack_size(STACK);
        thread.spawn_scoped(scope, work).ok()?.join().ok()
    })
}

/// A rule at a node of a schema.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    text: String,
    message: Option<String>,
    message_expression: Option<Arc<Program>>,
    reason: Option<String>,
    /// Path relative to the node, such as `.ports`.
    field: Option<String>,
    /// `true` if a rule about a change applies to creation too, with an empty optional as `oldSelf`.
    optional_old: bool,
    /// `None` if the expression does not compile, which `structural` reports.
    program: Option<Arc<Program>>,
    reads_old: bool,
}

impl Rule {
    pub(crate) fn parse_all(schema: &Fields<String, Value>) -> Vec<Rule> {
        let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
        rules.into_iter().flatten().filter_map(Rule::parse).collect()
    }

    fn parse(source: &Value) -> Option<Rule> {
        let text = |name: &str| source.get(name).and_then(Value::as_str).map(str::to_owned);
        let rule = text("rule")?;
        let program = compile(&rule).ok().map(Arc::new);
        Some(Rule {
            reads_old: program.as_ref().is_some_and(|program| program.references().has_variable("oldSelf")),
            program,
            message: text("message"),
            message_expression: text("messageExpression").and_then(|text| compile(&text).ok()).map(Arc::new),
            reason: text("reason"),
            field: text("fieldPath"),
            optional_old: source.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or(false),
            text: rule,
        })
    }

    /// `true` if the rule is about a change.
    pub(crate) fn reads_old(&self) -> bool {
        self.reads_old
    }

    /// Returns the violation of the rule, or `None` if it holds or does not apply.
    fn check(&self, scope: &Scope<'_>, path: &str) -> Option<Cause> {
        if self.reads_old && !self.optional_old && scope.old.is_none() {
            return None;
        }
        let mut context = BASE.new_inner_scope();
        context.add_variable_from_value("self", scope.this.clone());
        if self.optional_old {
            let old = scope.old.clone().map_or_else(OptionalValue::none, OptionalValue::of);
            context.add_variable_from_value("oldSelf", CelValue::Opaque(Arc::new(old)));
        } else if let Some(old) = &scope.old {
            context.add_variable_from_value("oldSelf", old.clone());
        }
        let invalid = |message: String| Cause::invalid_type_name(path, scope.node.kind.as_str(), &message);
        let message = match self.program.as_ref()?.execute(&context) {
            Ok(CelValue::Bool(true)) => return None,
            Ok(CelValue::Bool(false)) => match self.message_expression.as_ref().map(|m| m.execute(&context)) {
                Some(Ok(CelValue::String(message))) if !message.trim().is_empty() => message.to_string(),
                _ => self.message.clone().unwrap_or_else(|| format!("failed rule: {}", self.text)),
            },
            Ok(_) => return Some(invalid(format!("rule must return a boolean: {}", self.text))),
            Err(error) => return Some(invalid(format!("{error} evaluating rule: {}", self.text))),
        };
        let path = match &self.field {
            Some(field) if path.is_empty() => field.trim_start_matches('.').to_owned(),
            Some(field) => format!("{path}{field}"),
            None => path.to_owned(),
        };
        Some(match self.reason.as_deref() {
            Some("FieldValueForbidden") => Cause::forbidden(&path, &message),
            Some("FieldValueRequired") => Cause::required(&path, &message),
            Some("FieldValueDuplicate") => Cause::duplicate(&path, scope.value),
            // The values of objects and lists are left out.
            _ if scope.value.is_object() || scope.value.is_array() => {
                Cause { reason: Reason::Invalid, field: path, message: format!("Invalid value: {message}") }
            }
            _ => Cause::invalid(&path, scope.value, &message),
        })
    }
}

/// The values that the rules of a node see.
struct Scope<'a> {
    node: &'a Node,
    value: &'a Value,
    this: CelValue,
    old: Option<CelValue>,
}

/// Returns the violations of a node's rules. Call it [`apart`]. `old` is the former value.
pub(super) fn check(node: &Node, rules: &[Rule], value: &Value, old: Option<&Value>, path: &str) -> Vec<Cause> {
    let scope = Scope { node, value, this: convert(node, value), old: old.map(|old| convert(node, old)) };
    // For an unchanged value, only rules about changes apply.
    let unchanged = old == Some(value);
    rules.iter().filter(|rule| !unchanged || rule.reads_old()).filter_map(|rule| rule.check(&scope, path)).collect()
}

/// Compiles an expression.
pub(super) fn compile(text: &str) -> Result<Program, String> {
    if text.len() > LENGTH {
        return Err(format!("longer than {LENGTH} bytes"));
    }
    let compiled = apart(|| Program::compile(text).map_err(|error| error.to_string()));
    compiled.unwrap_or_else(|| Err("nested too deeply".to_owned()))
}

/// A condition over named JSON values, as in the match conditions of webhooks.
#[derive(Debug)]
pub(crate) struct Expression(Program);

impl Expression {
    /// Compiles an expression that may name `variables`.
    ///
    /// # Errors
    /// The syntax is wrong, the expression is too long or too deep, it names something else first, or it is no
    /// condition whatever the variables are.
    pub(crate) fn compile(text: &str, variables: &[&str]) -> Result<Self, String> {
        let expression = Expression(compile(text)?);
        let nothing: Vec<(&str, &Value)> = variables.iter().map(|name| (*name, &Value::Null)).collect();
        match apart(|| expression.execute(&nothing)) {
            Some(Err(ExecutionError::UndeclaredReference(name))) => {
                Err(format!("undeclared reference to '{name}' (in container '')"))
            }
            Some(Ok(CelValue::Bool(_)) | Err(_)) | None => Ok(expression),
            Some(Ok(_)) => Err("must evaluate to bool".to_owned()),
        }
    }

    fn execute(&self, variables: &[(&str, &Value)]) -> Result<CelValue, ExecutionError> {
        let mut context = BASE.new_inner_scope();
        for (name, value) in variables {
            context.add_variable_from_value(*name, dynamic(value));
        }
        self.0.execute(&context)
    }

    /// Evaluates the expression. Call it [`apart`].
    ///
    /// # Errors
    /// The evaluation fails, for example at a missing field, or the result is not a boolean.
    pub(crate) fn holds(&self, variables: &[(&str, &Value)]) -> Result<bool, String> {
        match self.execute(variables) {
            Ok(CelValue::Bool(holds)) => Ok(holds),
            Ok(_) => Err("the result is not a boolean".to_owned()),
            Err(ExecutionError::NoSuchKey(key)) => Err(format!("no such key: {key}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Converts a value without a schema. Names of fields stay as they are.
fn dynamic(value: &Value) -> CelValue {
    match value {
        Value::Array(items) => CelValue::List(Arc::new(items.iter().map(dynamic).collect())),
        Value::Object(fields) => {
            let entries = fields.iter().map(|(name, value)| (Key::String(Arc::new(name.clone())), dynamic(value)));
            CelValue::Map(Map { map: Arc::new(entries.collect::<HashMap<_, _>>()) })
        }
        scalar => convert(&super::node::FREE, scalar),
    }
}

static BASE: LazyLock<Context<'static>> = LazyLock::new(|| Context::default().with_all());

/// Converts a value for expressions.
fn convert(node: &Node, value: &Value) -> CelValue {
    let node = node.resolve();
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(value) => CelValue::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) if node.kind != super::node::Type::Number => CelValue::Int(integer),
            (_, Some(float)) => CelValue::Float(float),
            _ => CelValue::Null,
        },
        Value::String(text) => convert_text(node, text),
        Value::Array(items) => CelValue::List(Arc::new(items.iter().map(|item| convert(node.item(), item)).collect())),
        Value::Object(fields) => {
            // Keys of a map are data, and names of fields become identifiers.
            let is_map = node.additional.is_some();
            let entries = fields.iter().filter_map(|(name, value)| {
                let key = if is_map { name.clone() } else { identifier(name)? };
                let field = match &node.additional {
                    Some(Additional::Each(each)) => each,
                    _ => node.field(name).unwrap_or(&super::node::FREE),
                };
                Some((Key::String(Arc::new(key)), convert(field, value)))
            });
            CelValue::Map(Map { map: Arc::new(entries.collect::<HashMap<_, _>>()) })
        }
    }
}

fn convert_text(node: &Node, text: &str) -> CelValue {
    let string = || CelValue::String(Arc::new(text.to_owned()));
    match node.rules.as_ref().and_then(|rules| rules.format.as_deref()) {
        Some("date-time") => DateTime::parse_from_rfc3339(text).map_or_else(|_| string(), CelValue::Timestamp),
        Some("duration") => match go_duration(text) {
            Some(nanoseconds) => CelValue::Duration(chrono::Duration::nanoseconds(nanoseconds)),
            None => string(),
        },
        Some("byte") => match BASE64_STANDARD.decode(text) {
            Ok(bytes) => CelValue::Bytes(Arc::new(bytes)),
            Err(_) => string(),
        },
        _ => string(),
    }
}

/// Returns a field's name as a CEL identifier, or `None` if expressions cannot see the field. The rules are those of
/// Kubernetes' documentation of validation rules.
fn identifier(name: &str) -> Option<String> {
    const RESERVED: [&str; 18] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
    ];
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let usable = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/');
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(usable) {
        return None;
    }
    let escaped = name.replace("__", "\u{0}");
    let escaped = escaped.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__");
    Some(escaped.replace('\u{0}', "__underscores__"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use super::*;

    #[test]
    fn fields_have_the_identifiers_that_kubernetes_documents() {
        let cases = [
            ("replicas", Some("replicas")),
            ("my_field", Some("my_field")),
            ("namespace", Some("__namespace__")),
            ("foo-bar", Some("foo__dash__bar")),
            ("a.b/c", Some("a__dot__b__slash__c")),
            ("redact__d", Some("redact__underscores__d")),
            ("1st", None),
            ("gr\u{fc}n", None),
            ("", None),
        ];
        for (name, expected) in cases {
            assert_eq!(identifier(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn an_expression_beyond_the_limits_does_not_compile() {
        let refused = [
            "true ? true : ".repeat(500) + "true",
            format!("{}true{}", "(".repeat(2000), ")".repeat(2000)),
            "true || ".repeat(LENGTH) + "true",
        ];
        for text in refused {
            assert!(compile(&text).is_err(), "{}", &text[..40]);
        }
        for text in ["1 + ".repeat(2000) + "1 > 0", "self".to_owned() + &".a".repeat(4000)] {
            let program = compile(&text).unwrap();
            assert!(apart(|| drop(program.execute(&BASE))).is_some(), "{}", &text[..40]);
        }
    }
}
