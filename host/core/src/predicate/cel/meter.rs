//! Rewrites an expression so that what it costs is counted while it is evaluated.
//!
//! - What is iterated, compared, searched, concatenated or given to a function pays its size; some functions pay the square
//!   of it, because what they give or how long they take grows with the product of their arguments.
//! - Each turn of a loop pays for the nodes of its body.
//! - `a.b` becomes `a["b"]`: the interpreter then borrows instead of copying the whole of `b`, and fails where `a` is no
//!   object.
//! - Names and functions that are not there are found, which the interpreter would do only when it comes to them.

use std::cell::Cell;

use kube_cel::cel::common::ast::operators::{
    ADD, CONDITIONAL, EQUALS, GREATER, GREATER_EQUALS, IN, INDEX, LESS, LESS_EQUALS, LOGICAL_AND, LOGICAL_NOT,
    LOGICAL_OR, NEGATE, NOT_EQUALS, NOT_STRICTLY_FALSE,
};
use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use kube_cel::cel::{Context, ExecutionError, Value};

/// Pays for its argument's size and gives it back. An expression cannot name it: no identifier has an `@`.
const CHARGE: &str = "@charge";
/// The same for the square of the size.
const CHARGE_SQUARE: &str = "@square";
/// Pays the number that it is given; true.
const TICK: &str = "@tick";

/// Parts inside parts of one expression: evaluating recurses so deep, through a function for each that pays. A quarter of
/// what a thread's stack of 2 MiB has room for where nothing is optimised.
const MAX_DEPTH: u32 = 64;

/// What a node of a loop's body costs a turn: some fifty nanoseconds.
const NODE: i64 = 20;
/// What compiling a regular expression costs, however short: some tens of microseconds.
const REGEX: i64 = 20_000;
/// Bytes of a regular expression once compiled. It has to be a literal, and so cannot be larger when it is evaluated.
const MAX_REGEX: usize = 64 << 10;

/// Functions that take time and give values in proportion to their arguments.
#[rustfmt::skip]
const LINEAR: &[&str] = &[
    // CEL
    "contains", "size", "max", "min", "startsWith", "endsWith", "string", "double", "int", "uint", "duration", "timestamp",
    "getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek", "getHours", "getMinutes", "getSeconds",
    "getMilliseconds",
    // strings, lists
    "charAt", "indexOf", "lastIndexOf", "lowerAscii", "upperAscii", "split", "substring", "trim", "reverse", "isSorted", "sum",
    "first", "last", "slice", "sort", "flatten",
    // quantities, versions
    "quantity", "isQuantity", "isInteger", "asInteger", "asApproximateFloat", "sign", "add", "sub", "compareTo", "isGreaterThan",
    "isLessThan", "semver", "isSemver", "major", "minor", "patch",
    // addresses
    "ip", "isIP", "ip.isCanonical", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast", "isLinkLocalUnicast",
    "isGlobalUnicast", "cidr", "isCIDR", "containsIP", "containsCIDR", "prefixLength", "masked", "url", "isURL", "getScheme",
    "getHost", "getHostname", "getPort", "getEscapedPath", "getQuery",
    // numbers
    "math.abs", "math.ceil", "math.floor", "math.round", "math.trunc", "math.sign", "math.least", "math.greatest",
];
/// Functions that compare everything with everything, or put one argument in many places of another.
const SQUARE: &[&str] = &["sets.contains", "sets.equivalent", "sets.intersects", "distinct", "replace", "join"];
/// Functions whose first argument is a regular expression.
const REGULAR: &[&str] = &["matches", "find", "findAll"];

/// All functions that expressions can call.
pub(super) const FUNCTIONS: [&[&str]; 3] = [LINEAR, SQUARE, REGULAR];

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Runs `evaluate` with so much to spend.
pub(super) fn with_budget<T>(budget: u64, evaluate: impl FnOnce() -> T) -> T {
    LEFT.set(budget);
    evaluate()
}

fn spend(cost: u64) -> Result<(), ExecutionError> {
    match LEFT.get().checked_sub(cost) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => {
            LEFT.set(0);
            Err(ExecutionError::function_error("when", "it takes too long for these objects"))
        }
    }
}

/// Adds the functions that pay.
pub(super) fn register(context: &mut Context<'_>) {
    context.add_function(CHARGE, |value: Value| -> Result<Value, ExecutionError> {
        spend(size(&value, LEFT.get()))?;
        Ok(value)
    });
    context.add_function(CHARGE_SQUARE, |value: Value| -> Result<Value, ExecutionError> {
        let size = size(&value, LEFT.get());
        spend(size.saturating_mul(size))?;
        Ok(value)
    });
    context.add_function(TICK, |cost: i64| -> Result<Value, ExecutionError> {
        spend(cost.unsigned_abs())?;
        Ok(Value::Bool(true))
    });
}

/// Values and bytes of text in it; no further than a little above `most`.
fn size(value: &Value, most: u64) -> u64 {
    let length = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
    let of_all = |values: &mut dyn Iterator<Item = &Value>| {
        let mut sum: u64 = 1;
        for value in values {
            sum = sum.saturating_add(size(value, most.saturating_sub(sum)));
            if sum > most {
                break;
            }
        }
        sum
    };
    match value {
        Value::String(text) => 1 + length(text.len()),
        Value::Bytes(bytes) => 1 + length(bytes.len()),
        Value::List(items) => of_all(&mut items.iter()),
        Value::Map(map) => of_all(&mut map.map.values()).saturating_add(length(map.map.len()).saturating_mul(8)),
        _ => 1,
    }
}

/// The expression with its meters.
///
/// # Errors
/// What it uses that is not there.
pub(super) fn rewritten(ast: IdedExpr) -> Result<IdedExpr, String> {
    Rewriter { scope: vec!["object".to_owned(), "old".to_owned()], depth: 0 }.expression(ast)
}

struct Rewriter {
    /// Variables that can be named here.
    scope: Vec<String>,
    /// Parts that this one is inside of.
    depth: u32,
}

impl Rewriter {
    fn expression(&mut self, expression: IdedExpr) -> Result<IdedExpr, String> {
        if self.depth == MAX_DEPTH {
            return Err(format!("it nests more than {MAX_DEPTH} deep"));
        }
        self.depth += 1;
        let rewritten = self.part(expression);
        self.depth -= 1;
        rewritten
    }

    fn part(&mut self, IdedExpr { id, expr }: IdedExpr) -> Result<IdedExpr, String> {
        let expr = match expr {
            Expr::Literal(_) => expr,
            Expr::Ident(name) if self.scope.contains(&name) => Expr::Ident(name),
            Expr::Ident(name) => return Err(format!("there is no variable {name}: there are object and old")),
            Expr::Select(select) => {
                let operand = self.expression(*select.operand)?;
                let field = plain(&select.field);
                if select.test {
                    Expr::Select(kube_cel::cel::common::ast::SelectExpr {
                        operand: Box::new(operand),
                        field,
                        test: true,
                    })
                } else {
                    let field = made(Expr::Literal(LiteralValue::String(field.as_str().into())));
                    call(INDEX, vec![operand, field])
                }
            }
            Expr::Call(call) => return self.call(id, call),
            Expr::List(mut list) => {
                list.elements = self.all(list.elements)?;
                let fixed = list.elements.iter().all(is_literal);
                return Ok(if fixed { made(Expr::List(list)) } else { charged(made(Expr::List(list))) });
            }
            Expr::Map(mut map) => {
                for entry in &mut map.entries {
                    let EntryExpr::MapEntry(member) = &mut entry.expr else {
                        return Err("a field without a name cannot be in a map".to_owned());
                    };
                    member.key = self.expression(std::mem::take(&mut member.key))?;
                    member.value = self.expression(std::mem::take(&mut member.value))?;
                }
                return Ok(charged(made(Expr::Map(map))));
            }
            Expr::Comprehension(mut of) => {
                of.iter_range = charged(self.expression(of.iter_range)?);
                of.accu_init = self.expression(of.accu_init)?;
                let outer = self.scope.len();
                self.scope.push(of.accu_var.clone());
                of.result = self.expression(of.result)?;
                self.scope.push(of.iter_var.clone());
                self.scope.extend(of.iter_var2.clone());
                of.loop_cond = self.expression(of.loop_cond)?;
                of.loop_step = self.expression(of.loop_step)?;
                self.scope.truncate(outer);
                let turn = i64::try_from(nodes(&of.loop_step)).unwrap_or(i64::MAX).saturating_mul(NODE);
                of.loop_cond = made(call(LOGICAL_AND, vec![tick(turn), of.loop_cond]));
                Expr::Comprehension(of)
            }
            Expr::Struct(_) => return Err("messages cannot be made".to_owned()),
            Expr::Unspecified => return Err("a part of it is empty".to_owned()),
        };
        Ok(IdedExpr { id, expr })
    }

    fn all(&mut self, expressions: Vec<IdedExpr>) -> Result<Vec<IdedExpr>, String> {
        expressions.into_iter().map(|expression| self.expression(expression)).collect()
    }

    fn call(&mut self, id: u64, mut of: CallExpr) -> Result<IdedExpr, String> {
        let name = of.func_name.as_str();
        match name {
            CONDITIONAL | LOGICAL_AND | LOGICAL_OR | LOGICAL_NOT | NOT_STRICTLY_FALSE | NEGATE | INDEX => {
                of.args = self.all(of.args)?;
            }
            "_-_" | "_*_" | "_/_" | "_%_" => of.args = self.all(of.args)?,
            ADD => {
                of.args = self.all(of.args)?;
                return Ok(charged(IdedExpr { id, expr: Expr::Call(of) }));
            }
            EQUALS | NOT_EQUALS | LESS | LESS_EQUALS | GREATER | GREATER_EQUALS | IN => {
                of.args = self.all(of.args)?;
                if !of.args.iter().any(is_literal) || name == IN {
                    of.args = of.args.into_iter().map(charged).collect();
                }
            }
            _ => return self.function(id, of),
        }
        Ok(IdedExpr { id, expr: Expr::Call(of) })
    }

    fn function(&mut self, id: u64, mut of: CallExpr) -> Result<IdedExpr, String> {
        let prefix = match of.target.as_deref() {
            Some(IdedExpr { expr: Expr::Ident(prefix), .. }) => Some(format!("{prefix}.{}", of.func_name)),
            _ => None,
        };
        let there = |name: &&str| FUNCTIONS.iter().any(|names| names.contains(name));
        let qualified = prefix.filter(|name| there(&name.as_str()));
        let name = qualified.as_deref().unwrap_or(&of.func_name);
        if !there(&name) {
            return Err(format!("there is no function {name}"));
        }
        let is_regular = REGULAR.contains(&name);
        if is_regular {
            // `text.matches(pattern)`, `matches(text, pattern)`.
            check_regex(of.args.get(usize::from(of.target.is_none())))?;
        }
        let pay = if SQUARE.contains(&name) { CHARGE_SQUARE } else { CHARGE };
        of.args = self.all(of.args)?.into_iter().map(|argument| paid(pay, argument)).collect();
        if qualified.is_none()
            && let Some(target) = of.target
        {
            of.target = Some(Box::new(paid(pay, self.expression(*target)?)));
        }
        let called = IdedExpr { id, expr: Expr::Call(of) };
        // The conditional pays before it calls.
        Ok(if is_regular {
            made(call(CONDITIONAL, vec![tick(REGEX), called, made(Expr::Literal(LiteralValue::Null))]))
        } else {
            called
        })
    }
}

/// A regular expression must be known when the manifest is checked, and small.
fn check_regex(pattern: Option<&IdedExpr>) -> Result<(), String> {
    let Some(IdedExpr { expr: Expr::Literal(LiteralValue::String(pattern)), .. }) = pattern else {
        return Err("a regular expression has to be a literal".to_owned());
    };
    let built = regex::RegexBuilder::new(pattern.inner()).size_limit(MAX_REGEX).build();
    built.map(drop).map_err(|error| format!("a regular expression cannot be used: {error}").replace('\n', " "))
}

/// A field's name without the escapes by which Kubernetes makes identifiers of names that are none.
pub(super) fn plain(name: &str) -> String {
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
    let reserved = name.strip_prefix("__").and_then(|name| name.strip_suffix("__"));
    if let Some(reserved) = reserved.filter(|name| RESERVED.contains(name)) {
        return reserved.to_owned();
    }
    let name = name.replace("__dot__", ".").replace("__dash__", "-").replace("__slash__", "/");
    name.replace("__underscores__", "__")
}

fn made(expr: Expr) -> IdedExpr {
    // Numbers of nodes only serve the parser's messages.
    IdedExpr { id: 0, expr }
}

fn call(function: &str, args: Vec<IdedExpr>) -> Expr {
    Expr::Call(CallExpr { func_name: function.to_owned(), target: None, args })
}

fn tick(cost: i64) -> IdedExpr {
    made(call(TICK, vec![made(Expr::Literal(LiteralValue::Int(cost.into())))]))
}

fn charged(expression: IdedExpr) -> IdedExpr {
    paid(CHARGE, expression)
}

fn paid(meter: &str, expression: IdedExpr) -> IdedExpr {
    if is_fixed(&expression) { expression } else { made(call(meter, vec![expression])) }
}

fn is_literal(expression: &IdedExpr) -> bool {
    matches!(expression.expr, Expr::Literal(_))
}

/// As long as its text at most.
fn is_fixed(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Literal(_) => true,
        Expr::List(list) => list.elements.iter().all(is_literal),
        Expr::Call(call) => matches!(call.func_name.as_str(), CHARGE | CHARGE_SQUARE),
        _ => false,
    }
}

/// How many parts an expression has, loops inside it counted once: they pay for themselves.
fn nodes(expression: &IdedExpr) -> usize {
    let all = |expressions: &[IdedExpr]| expressions.iter().map(nodes).sum::<usize>();
    1 + match &expression.expr {
        Expr::Literal(_) | Expr::Ident(_) | Expr::Unspecified | Expr::Struct(_) => 0,
        Expr::Select(select) => nodes(&select.operand),
        Expr::Call(call) => call.target.as_deref().map_or(0, nodes) + all(&call.args),
        Expr::List(list) => all(&list.elements),
        Expr::Map(map) => map.entries.len() * 2,
        Expr::Comprehension(of) => nodes(&of.iter_range) + nodes(&of.loop_step),
    }
}
