//! Rewrites an expression so that its cost is counted during evaluation.
//!
//! - A value that is iterated, compared, searched, concatenated or passed to a function is charged for its size before
//!   it is copied. The interpreter copies it several times. Some functions are charged more, as their results or their
//!   time grow faster than their arguments.
//! - Each turn of a loop is charged for the nodes of its body, and for the list or map that it builds, which is copied
//!   at each turn.
//! - `a.b` becomes `a["b"]`. The interpreter then borrows instead of copying the whole of `b`, and fails if `a` is not
//!   an object.
//! - Unknown names and functions are rejected here; the interpreter would find them only during evaluation.
//!
//! Prices are in units of some 20 ns ([`BUDGET`](super::BUDGET)). They are those of the slowest known case, by time and
//! by allocations: `host/core/tests/predicates.rs` compares them with what the interpreter allocates.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

use kube_cel::cel::{
    Context, ExecutionError, FunctionContext, ResolveResult, Value,
    common::{
        ast::{
            CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue,
            operators::{
                ADD, CONDITIONAL, EQUALS, GREATER, GREATER_EQUALS, IN, INDEX, LESS, LESS_EQUALS, LOGICAL_AND,
                LOGICAL_NOT, LOGICAL_OR, NEGATE, NOT_EQUALS, NOT_STRICTLY_FALSE,
            },
        },
        types::{CelBytes, CelList, CelMap, CelMapKey, CelString},
        value::Val,
    },
    extractors::This,
};
use regex::Regex;

/// Returns its argument, and charges for copying it. An expression cannot name it, as no identifier has an `@`.
const CHARGE: &str = "@charge";
/// The same for functions that read each byte of a text.
const CHARGE_BYTES: &str = "@bytes";
/// The same for functions that may create a value for each byte.
const CHARGE_PARTS: &str = "@parts";
/// The same for functions that compare all pairs.
const CHARGE_PAIRS: &str = "@pairs";
/// The same for functions that may insert one text in many places of another.
const CHARGE_PRODUCT: &str = "@product";
/// Charges its argument, and returns true.
const TICK: &str = "@tick";

/// Largest nesting of an expression. Evaluation recurses with it, through a function for each charge. This uses a
/// quarter of a stack of 2 MiB in an unoptimized build.
const MAX_DEPTH: u32 = 64;

/// Cost of a number or another value without parts: some four allocations of a box.
pub(super) const SCALAR: u64 = 5;
/// Additional cost of a text: twice as many allocations.
const TEXT: u64 = 7;
/// Bytes of text that are copied per unit.
const COPIED: u64 = 16;
/// Bytes of text that a function reads per unit.
const READ: u64 = 4;
/// Cost of each byte of a text that may become a separate value.
const PART: u64 = SCALAR + TEXT;
/// Cost of a map's member without its value: each copy copies and hashes its name.
const MEMBER: u64 = 20;
/// Cost of each turn of a loop without its body: two variables enter the scope.
const TURN: u64 = 20;
/// Cost of a node of a loop's body per turn.
const NODE: u64 = 5;
/// Cost of compiling a regular expression, however short: it may take [`MAX_REGEX`] once compiled.
const REGEX: u64 = 10_000;
/// Largest compiled regular expression in bytes. It must be a literal, so its size is known before evaluation.
const MAX_REGEX: usize = 64 << 10;
/// Compiled regular expressions that a thread keeps: as many as one predicate has loops. Each takes at most
/// [`MAX_REGEX`], and as much again while it matches.
const KEPT_REGEXES: usize = 8;

/// Functions whose time and results are proportional to their arguments.
#[rustfmt::skip]
const LINEAR: &[&str] = &[
    // CEL
    "contains", "size", "max", "min", "startsWith", "endsWith", "string", "double", "int", "uint", "duration", "timestamp",
    "getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek", "getHours", "getMinutes", "getSeconds",
    "getMilliseconds",
    // strings, lists
    "charAt", "indexOf", "lastIndexOf", "lowerAscii", "upperAscii", "substring", "trim", "reverse", "isSorted", "sum",
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
/// Functions that may create a value for each byte of a text.
const PARTS: &[&str] = &["split", "findAll"];
/// Functions that compare all pairs.
const PAIRS: &[&str] = &["sets.contains", "sets.equivalent", "sets.intersects", "distinct"];
/// Functions that insert one argument in many places of another.
const PRODUCT: &[&str] = &["replace", "join"];
/// Functions whose first argument is a regular expression.
const REGULAR: &[&str] = &["matches", "find", "findAll"];

/// All functions that expressions can call.
pub(super) const FUNCTIONS: [&[&str]; 5] = [LINEAR, PARTS, PAIRS, PRODUCT, REGULAR];

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// Newest last.
    static REGEXES: RefCell<Vec<(Arc<String>, Regex)>> = const { RefCell::new(Vec::new()) };
}

/// Runs `evaluate` with a budget. Also returns what was spent.
pub(super) fn with_budget<T>(budget: u64, evaluate: impl FnOnce() -> T) -> (T, u64) {
    let outer = LEFT.replace(budget);
    let result = evaluate();
    (result, budget.saturating_sub(LEFT.replace(outer)))
}

/// Returns `true` if nothing is left: every further charge fails.
pub(super) fn is_spent() -> bool {
    LEFT.get() == 0
}

const TOO_LONG: &str = "it takes too long for these objects";

fn spend(cost: u64) -> Result<(), ExecutionError> {
    let left = LEFT.get().saturating_sub(cost);
    LEFT.set(left);
    if left == 0 { Err(ExecutionError::function_error("when", TOO_LONG)) } else { Ok(()) }
}

/// Charges for converting a part of an object.
pub(super) fn read(cost: u64) -> Result<(), &'static str> {
    spend(cost).map_err(|_| TOO_LONG)
}

/// Returns the cost of a text of this length, without [`SCALAR`].
pub(super) fn text(length: usize) -> u64 {
    TEXT + wide(length) / COPIED
}

/// Returns the cost of a map's member, without its value.
pub(super) fn member(name: usize) -> u64 {
    MEMBER + wide(name) / COPIED
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Registers the functions that charge.
pub(super) fn register(context: &mut Context<'_>) {
    type Function = Box<dyn Fn(&mut FunctionContext<'_, '_>) -> ResolveResult + Send + Sync>;
    let mut charge = |name: &str, price: fn(&Size) -> u64| {
        let function: Function = Box::new(move |call: &mut FunctionContext<'_, '_>| {
            let argument = call.args.first().ok_or_else(|| ExecutionError::invalid_argument_count(1, 0))?;
            // Not as a `Value`, which would be a copy before the charge.
            let argument = Value::resolve_val(argument, call.ptx)?;
            let mut size = Size::default();
            size.add(argument.as_ref(), LEFT.get());
            spend(price(&size))?;
            argument.as_ref().try_into()
        });
        context.add_function::<Function, _>(name, function);
    };
    charge(CHARGE, Size::copied);
    charge(CHARGE_BYTES, |size| size.copied().saturating_add(size.bytes / READ));
    charge(CHARGE_PARTS, |size| size.copied().saturating_add(size.bytes.saturating_mul(PART)));
    charge(CHARGE_PAIRS, |size| {
        let values = size.values.saturating_add(size.bytes / COPIED);
        size.copied().saturating_add(values.saturating_mul(values))
    });
    charge(CHARGE_PRODUCT, |size| {
        let places = size.bytes / READ;
        size.copied().saturating_add(places.saturating_mul(places))
    });
    context.add_function(TICK, |cost: i64| -> Result<Value, ExecutionError> {
        spend(cost.unsigned_abs())?;
        Ok(Value::Bool(true))
    });
    context.add_function("matches", |This(text): This<Arc<String>>, pattern: Arc<String>| matches(&text, &pattern));
}

/// CEL's `matches`, which compiles a pattern once and not at each turn of a loop.
fn matches(text: &str, pattern: &Arc<String>) -> Result<bool, ExecutionError> {
    REGEXES.with_borrow_mut(|kept| {
        if let Some(at) = kept.iter().position(|(known, _)| known == pattern) {
            return Ok(kept[at].1.is_match(text));
        }
        spend(REGEX)?;
        let regex = compiled(pattern).map_err(|error| ExecutionError::function_error("matches", error))?;
        let answer = regex.is_match(text);
        if kept.len() >= KEPT_REGEXES {
            kept.remove(0);
        }
        kept.push((pattern.clone(), regex));
        Ok(answer)
    })
}

fn compiled(pattern: &str) -> Result<Regex, regex::Error> {
    regex::RegexBuilder::new(pattern).size_limit(MAX_REGEX).dfa_size_limit(MAX_REGEX).build()
}

/// The size of a value.
#[derive(Default)]
struct Size {
    values: u64,
    texts: u64,
    members: u64,
    /// Bytes of texts and of members' names.
    bytes: u64,
}

impl Size {
    /// Returns the cost of copying it.
    fn copied(&self) -> u64 {
        (self.values * SCALAR)
            .saturating_add(self.texts * TEXT)
            .saturating_add(self.members * MEMBER)
            .saturating_add(self.bytes / COPIED)
    }

    /// Adds a value. Stops soon after the cost exceeds `most`.
    fn add(&mut self, value: &dyn Val, most: u64) {
        self.values += 1;
        if let Some(text) = value.downcast_ref::<CelString>() {
            self.texts += 1;
            self.bytes = self.bytes.saturating_add(wide(text.inner().len()));
        } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
            self.bytes = self.bytes.saturating_add(wide(bytes.inner().len()));
        } else if let Some(list) = value.downcast_ref::<CelList>() {
            for item in list.inner() {
                if self.copied() > most {
                    return;
                }
                self.add(item.as_ref(), most);
            }
        } else if let Some(map) = value.downcast_ref::<CelMap>() {
            for (name, value) in map.inner() {
                if self.copied() > most {
                    return;
                }
                self.members += 1;
                if let CelMapKey::String(name) = name {
                    self.bytes = self.bytes.saturating_add(wide(name.inner().len()));
                }
                self.add(value.as_ref(), most);
            }
        }
    }
}

/// Returns the expression with its charges.
///
/// # Errors
/// An unknown name or function that it uses.
pub(super) fn rewritten(ast: IdedExpr) -> Result<IdedExpr, String> {
    Rewriter { scope: vec!["object".to_owned(), "old".to_owned()], depth: 0 }.expression(ast)
}

struct Rewriter {
    /// Variables in scope.
    scope: Vec<String>,
    /// Nesting at this point.
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
                list.elements = self.charged(list.elements)?;
                Expr::List(list)
            }
            Expr::Map(mut map) => {
                for entry in &mut map.entries {
                    let EntryExpr::MapEntry(member) = &mut entry.expr else {
                        return Err("a field without a name cannot be in a map".to_owned());
                    };
                    member.key = charged(self.expression(std::mem::take(&mut member.key))?);
                    member.value = charged(self.expression(std::mem::take(&mut member.value))?);
                }
                charged(made(Expr::Map(map))).expr
            }
            Expr::Comprehension(mut of) => {
                of.iter_range = charged(self.expression(of.iter_range)?);
                of.accu_init = self.expression(of.accu_init)?;
                // The result of `map` and `filter` is copied at each turn, even if nothing is added.
                let gathers = matches!(of.accu_init.expr, Expr::List(_) | Expr::Map(_));
                let outer = self.scope.len();
                self.scope.push(of.accu_var.clone());
                of.result = self.expression(of.result)?;
                self.scope.push(of.iter_var.clone());
                self.scope.extend(of.iter_var2.clone());
                of.loop_cond = self.expression(of.loop_cond)?;
                of.loop_step = self.expression(of.loop_step)?;
                self.scope.truncate(outer);
                let turn = wide(nodes(&of.loop_step)).saturating_mul(NODE).saturating_add(TURN);
                of.loop_cond = made(call(LOGICAL_AND, vec![tick(turn), of.loop_cond]));
                if gathers {
                    of.loop_step = charged(of.loop_step);
                }
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

    fn charged(&mut self, expressions: Vec<IdedExpr>) -> Result<Vec<IdedExpr>, String> {
        Ok(self.all(expressions)?.into_iter().map(charged).collect())
    }

    fn call(&mut self, id: u64, mut of: CallExpr) -> Result<IdedExpr, String> {
        let name = of.func_name.as_str();
        match name {
            CONDITIONAL | LOGICAL_AND | LOGICAL_OR | LOGICAL_NOT | NOT_STRICTLY_FALSE | INDEX => {
                of.args = self.all(of.args)?;
            }
            // If a value is not a number, the error contains a copy of it.
            "_-_" | "_*_" | "_/_" | "_%_" | ADD | NEGATE => of.args = self.charged(of.args)?,
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
        let pay = match name {
            name if PARTS.contains(&name) => CHARGE_PARTS,
            name if PAIRS.contains(&name) => CHARGE_PAIRS,
            name if PRODUCT.contains(&name) => CHARGE_PRODUCT,
            // Does not read its argument.
            "size" => CHARGE,
            _ => CHARGE_BYTES,
        };
        // `matches` keeps its compiled patterns, and charges when it compiles.
        let compiles = is_regular && name != "matches";
        of.args = self.all(of.args)?.into_iter().map(|argument| paid(pay, argument)).collect();
        if qualified.is_none()
            && let Some(target) = of.target
        {
            of.target = Some(Box::new(paid(pay, self.expression(*target)?)));
        }
        let called = IdedExpr { id, expr: Expr::Call(of) };
        // The conditional charges before it calls.
        Ok(if compiles {
            made(call(CONDITIONAL, vec![tick(REGEX), called, made(Expr::Literal(LiteralValue::Null))]))
        } else {
            called
        })
    }
}

/// Checks that a regular expression is a small literal.
fn check_regex(pattern: Option<&IdedExpr>) -> Result<(), String> {
    let Some(IdedExpr { expr: Expr::Literal(LiteralValue::String(pattern)), .. }) = pattern else {
        return Err("a regular expression has to be a literal".to_owned());
    };
    compiled(pattern.inner())
        .map(drop)
        .map_err(|error| format!("a regular expression cannot be used: {error}").replace('\n', " "))
}

/// Returns a field's name without the escapes by which Kubernetes turns names into identifiers.
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
    // Node numbers only serve the parser's messages.
    IdedExpr { id: 0, expr }
}

fn call(function: &str, args: Vec<IdedExpr>) -> Expr {
    Expr::Call(CallExpr { func_name: function.to_owned(), target: None, args })
}

fn tick(cost: u64) -> IdedExpr {
    let cost = i64::try_from(cost).unwrap_or(i64::MAX);
    made(call(TICK, vec![made(Expr::Literal(LiteralValue::Int(cost.into())))]))
}

fn charged(expression: IdedExpr) -> IdedExpr {
    paid(CHARGE, expression)
}

fn paid(meter: &str, expression: IdedExpr) -> IdedExpr {
    if is_fixed(&expression, meter) { expression } else { made(call(meter, vec![expression])) }
}

fn is_literal(expression: &IdedExpr) -> bool {
    matches!(expression.expr, Expr::Literal(_))
}

/// Returns `true` if the result is at most as long as its text, or has been charged with `meter`.
fn is_fixed(expression: &IdedExpr, meter: &str) -> bool {
    match &expression.expr {
        Expr::Literal(_) => true,
        Expr::List(list) => list.elements.iter().all(is_literal),
        Expr::Call(call) => call.func_name == meter,
        _ => false,
    }
}

/// Returns the number of nodes. Loops inside count once: they charge for themselves.
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
