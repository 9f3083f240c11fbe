//! Decides which changes matter to a watch.

use std::{collections::HashMap, sync::Arc};

use kube_cel::{
    KubeCelExt,
    cel::{
        Context, Program,
        objects::{Key, Map, Value as CelValue},
    },
};
use serde_json::Value;

use crate::contract::exports::pilothouse::plugin::controller::{Condition, Test};

/// Returns `true` if all conditions of one alternative hold, or if there is no alternative.
pub(super) fn matters(when: &[Vec<Condition>], old: Option<&Value>, new: Option<&Value>) -> bool {
    when.is_empty() || when.iter().any(|all| all.iter().all(|condition| holds(condition, old, new)))
}

/// # Errors
/// Fails if the expression is not valid. Says why.
pub(super) fn compile(expression: &str) -> Result<Program, String> {
    Program::compile(expression).map_err(|error| format!("{expression:?} is not a valid CEL expression: {error}"))
}

fn holds(Condition { test, negated }: &Condition, old: Option<&Value>, new: Option<&Value>) -> bool {
    let field = match test {
        Test::Cel(expression) => return evaluate(expression, old, new).is_none_or(|holds| holds != *negated),
        Test::Generation => "generation",
        Test::Labels => "labels",
        Test::Annotations => "annotations",
        Test::Finalizers => "finalizers",
        Test::Deletion => "deletionTimestamp",
        Test::ResourceVersion => "resourceVersion",
    };
    let (Some(old), Some(new)) = (old, new) else { return true };
    (old["metadata"][field] != new["metadata"][field]) != *negated
}

/// Returns the result of an expression. `None` if it failed: the change then matters.
fn evaluate(expression: &str, old: Option<&Value>, new: Option<&Value>) -> Option<bool> {
    let program = compile(expression).ok()?;
    let mut context = Context::default().with_all();
    context.add_variable_from_value("object", new.map_or(CelValue::Null, convert));
    context.add_variable_from_value("old", old.map_or(CelValue::Null, convert));
    match program.execute(&context) {
        Ok(CelValue::Bool(holds)) => Some(holds),
        _ => None,
    }
}

fn convert(value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(value) => CelValue::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => CelValue::Int(integer),
            (None, Some(float)) => CelValue::Float(float),
            (None, None) => CelValue::Null,
        },
        Value::String(text) => CelValue::String(Arc::new(text.clone())),
        Value::Array(items) => CelValue::List(Arc::new(items.iter().map(convert).collect())),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| (Key::String(Arc::new(name.clone())), convert(value)));
            CelValue::Map(Map { map: Arc::new(members.collect::<HashMap<_, _>>()) })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Condition, Test, matters};

    fn object(generation: u32, app: &str, replicas: u32) -> Value {
        json!({"metadata": {"generation": generation, "labels": {"app": app}}, "spec": {"replicas": replicas}})
    }

    fn test(test: Test) -> Vec<Vec<Condition>> {
        vec![vec![Condition { test, negated: false }]]
    }

    fn not(test: Test) -> Vec<Vec<Condition>> {
        vec![vec![Condition { test, negated: true }]]
    }

    #[test]
    fn a_comparison_holds_of_what_differs_and_of_what_comes_or_goes() {
        let (old, new) = (object(1, "web", 1), object(2, "web", 1));
        let (old, new) = (Some(&old), Some(&new));
        assert!(matters(&[], old, old));
        for (when, both, same) in [
            (test(Test::Generation), true, false),
            (not(Test::Generation), false, true),
            (test(Test::Labels), false, false),
            (not(Test::Labels), true, true),
        ] {
            assert_eq!((matters(&when, old, new), matters(&when, new, new)), (both, same), "{when:?}");
            assert!(matters(&when, None, new) && matters(&when, old, None), "{when:?}");
        }
    }

    #[test]
    fn an_expression_sees_both_sides_and_counts_where_it_fails() {
        let (one, three) = (object(1, "web", 1), object(2, "web", 3));
        let more =
            || Test::Cel("old != null && object != null && object.spec.replicas > old.spec.replicas + 1".to_owned());
        assert!(matters(&test(more()), Some(&one), Some(&three)));
        assert!(!matters(&test(more()), Some(&three), Some(&one)));
        assert!(!matters(&test(more()), None, Some(&three)));
        assert!(matters(&not(more()), None, Some(&three)));
        let fails = || Test::Cel("old.spec.replicas > 0".to_owned());
        assert!(matters(&test(fails()), None, Some(&one)) && matters(&not(fails()), None, Some(&one)));
    }
}
