//! Finds the fields of `object` and `old` that an expression reads, as far as its text shows.

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators::INDEX};

use super::meter::plain;
use crate::field::FieldPath;

/// Returns the fields that an expression reads, each after the fields that contain it. For a computed name, only the
/// containing field is returned.
pub(super) fn read(expression: &IdedExpr) -> Vec<FieldPath> {
    let mut reader = Reader { scope: ["object", "old"].map(|side| (side, Meaning::Side)).into(), found: Vec::new() };
    reader.visit(expression);
    reader.found
}

/// The meaning of a part of an expression.
#[derive(Clone)]
enum Meaning {
    /// `object` or `old`.
    Side,
    Field(FieldPath),
    /// A computed value.
    Else,
}

struct Reader<'a> {
    scope: Vec<(&'a str, Meaning)>,
    found: Vec<FieldPath>,
}

impl<'a> Reader<'a> {
    fn visit(&mut self, expression: &'a IdedExpr) -> Meaning {
        match &expression.expr {
            Expr::Ident(name) => {
                let variable = self.scope.iter().rev().find(|(known, _)| known == name);
                return variable.map_or(Meaning::Else, |(_, place)| place.clone());
            }
            Expr::Select(select) => {
                let of = self.visit(&select.operand);
                return self.member(&of, &plain(&select.field));
            }
            Expr::Call(call) => {
                let target = call.target.as_deref();
                let parts: Vec<Meaning> = target.into_iter().chain(&call.args).map(|part| self.visit(part)).collect();
                let ([of, _], [_, name]) = (&parts[..], &call.args[..]) else { return Meaning::Else };
                if call.func_name != INDEX {
                    return Meaning::Else;
                }
                return match (&name.expr, of) {
                    (Expr::Literal(LiteralValue::String(name)), of) => self.member(of, name.inner()),
                    (Expr::Literal(_), Meaning::Field(list)) => Meaning::Field(list.each()),
                    _ => Meaning::Else,
                };
            }
            Expr::List(list) => list.elements.iter().for_each(|element| drop(self.visit(element))),
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(member) = &entry.expr {
                        self.visit(&member.key);
                        self.visit(&member.value);
                    }
                }
            }
            Expr::Comprehension(of) => {
                let element = match self.visit(&of.iter_range) {
                    // With one variable, it is an element; with two, the first is its position.
                    Meaning::Field(list) if of.iter_var2.is_none() => Meaning::Field(list.each()),
                    _ => Meaning::Else,
                };
                self.visit(&of.accu_init);
                let outer = self.scope.len();
                self.scope.push((&of.accu_var, Meaning::Else));
                self.visit(&of.result);
                self.scope.push((&of.iter_var, element));
                self.scope.extend(of.iter_var2.as_deref().map(|name| (name, Meaning::Else)));
                self.visit(&of.loop_cond);
                self.visit(&of.loop_step);
                self.scope.truncate(outer);
            }
            Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {}
        }
        Meaning::Else
    }

    fn member(&mut self, of: &Meaning, name: &str) -> Meaning {
        let field = match of {
            Meaning::Side => FieldPath::top(name),
            Meaning::Field(field) => field.member(name),
            Meaning::Else => return Meaning::Else,
        };
        if !self.found.contains(&field) {
            self.found.push(field.clone());
        }
        Meaning::Field(field)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use kube_cel::cel::parser::Parser;

    use super::*;

    #[test]
    fn fields_are_found_wherever_they_are_read() {
        let table: &[(&str, &[&str])] = &[
            ("object.status.phase == 'Ready'", &["status", "status.phase"]),
            ("object['status'].x != old.status['x']", &["status", "status.x"]),
            ("has(object.spec.a__dash__b)", &["spec", "spec['a-b']"]),
            (
                "object.status.images[0].names.exists(n, n.startsWith(old.spec.prefix))",
                &["status", "status.images", "status.images[*].names", "spec", "spec.prefix"],
            ),
            ("object.spec.ports.all(port, port.name != '')", &["spec", "spec.ports", "spec.ports[*].name"]),
            ("object.spec.ports.all(object, object.name != '')", &["spec", "spec.ports", "spec.ports[*].name"]),
            ("object.spec[old.spec.key].x == [1, object.data.y]", &["spec", "spec.key", "data", "data.y"]),
            ("object == old", &[]),
        ];
        for (text, expected) in table {
            let found = read(&Parser::default().parse(text).unwrap());
            let expected: Vec<FieldPath> = expected.iter().map(|path| FieldPath::parse(path).unwrap()).collect();
            assert_eq!(found, expected, "{text}");
        }
    }
}
