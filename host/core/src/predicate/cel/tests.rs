#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn problem(text: &str) -> String {
    Expression::compile(text).unwrap_err().0
}

fn evaluate(text: &str, object: &serde_json::Value) -> Result<bool, String> {
    answer(&Expression::compile(text).unwrap(), &object.to_string())
}

fn answer(expression: &Expression, object: &str) -> Result<bool, String> {
    let sides = Sides::new(None, Some(object), std::iter::once(expression));
    with_budget(|| expression.evaluate(&sides)).0.map_err(Problem::into_text)
}

#[test]
fn unknown_names_and_bad_literals_are_found_before_an_evaluation() {
    assert_eq!(problem("self.x == 1"), "there is no variable self: there are object and old");
    assert_eq!(problem("true || x"), "there is no variable x: there are object and old");
    assert_eq!(problem("[1].exists(x, x == 1) && x"), "there is no variable x: there are object and old");
    assert_eq!(problem("object.x.frobnicate()"), "there is no function frobnicate");
    assert_eq!(problem("lists.range(1000000000).size() > 1"), "there is no function range");
    assert_eq!(problem("Pod{name: 'a'} == object"), "messages cannot be made");
    assert_eq!(problem("object.x.matches(object.y)"), "a regular expression has to be a literal");
    assert!(problem("object.x.matches('(')").starts_with("a regular expression cannot be used: "));
    assert!(problem(r"object.x.matches('\\pL{1000}')").starts_with("a regular expression cannot be used: "));
}

#[test]
fn an_invalid_expression_is_explained_on_one_line() {
    for text in ["", "object.", "object.status.phase ==", "\"", "1 +\n+ 2 (", "a ? b"] {
        let problem = problem(text);
        assert!(!problem.is_empty() && !problem.contains('\n'), "{text}: {problem}");
    }
}

#[test]
fn an_expression_beyond_the_limits_is_refused() {
    assert_eq!(problem(&"true || ".repeat(200)), "it has 1600 bytes; at most 1024 are taken");
    assert_eq!(problem(&("true ? true : ".repeat(20) + "true")), "it has more than 16 conditionals");
    for text in ["!!true", "! !true", "true && !!true", "--object.x == 1", "1 - - -object.x == 1"] {
        assert_eq!(problem(text), "write `!` and `-` once: the parser takes two of them for one", "{text}");
    }
    for text in ["!true == !object.x", "1 - -1 == -2", "'!!' == '--'", "object.x != \"a\\\"!!\""] {
        assert!(Expression::compile(text).is_ok(), "{text}");
    }
    assert!(Expression::compile(&("(".repeat(500) + "true" + &")".repeat(500))).is_err());
}

#[test]
fn the_deepest_expressions_fit_a_threads_stack() {
    let object = json!({"a": true});
    let chains =
        ["1 + ".repeat(60) + "1 > 0", "true && ".repeat(60) + "true", "!(".repeat(60) + "true" + &")".repeat(60)];
    for text in chains {
        assert_eq!(evaluate(&text, &object), Ok(true), "{text}");
    }
    let deep = "[true]".to_owned() + &".map(a, a".repeat(8) + &")".repeat(8) + " == [true]";
    assert!(evaluate(&deep, &object).is_err(), "what is no list is iterated");
    for text in ["1 + ".repeat(250) + "1 > 0", "object".to_owned() + &".a".repeat(500)] {
        assert_eq!(problem(&text), "it nests more than 64 deep");
    }
}

#[test]
fn a_field_of_nothing_fails() {
    let object = json!({"a": 1, "n": null});
    for text in ["object.n.x == 1", "object.n.x != 1", "object.a.x == 1", "old.x == 1", "object.x == 1", "object.a"] {
        assert!(evaluate(text, &object).is_err(), "{text}");
    }
}

#[test]
fn an_evaluation_that_costs_too_much_fails() {
    let names: Vec<_> = (0..1000).map(|i| format!("name-{i}")).collect();
    let object = json!({"names": names, "text": "x".repeat(100_000)});
    let too_much = [
        // Loops in loops.
        "object.names.all(a, object.names.all(b, object.names.all(c, a != 'x' && b != 'x' && c != 'x')))",
        // The whole object again and again.
        "object.names.all(a, object == object)",
        // Ever larger texts.
        "[object.text].map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a).size() > 0",
        // Ever larger lists.
        "[object.names].map(a, [a, a, a, a, a, a, a, a]).map(a, [a, a, a, a, a, a, a, a]).map(a, [a, a, a, a, a, a, a, a]).size() > 0",
        "object.names.map(a, object.names).size() > 0",
        // One text in all places of another.
        "object.text.replace('x', object.text).size() > 0",
        "object.names.join(object.text).size() > 0",
        // A function that compares everything with everything.
        "sets.contains(object.names, object.names)",
        // Compiling regular expressions.
        "object.names.all(a, a.find('^name-[0-9]+$') != '')",
        // Reading a text again and again, and making a value of each byte.
        "object.names.all(a, !object.text.contains(a))",
        "object.text.split('').size() > 0",
        // What is gathered is copied at each turn, also where nothing is added.
        "object.names.map(a, a).size() > 0",
        "object.names.filter(a, a < 'name-5').size() > 0",
        // Many copies in one list.
        "[object.names, object.names, object.names, object.names, object.names, object.names, object.names, object.names, object.names].size() > 0",
    ];
    for text in too_much {
        let error = evaluate(text, &object).unwrap_err();
        assert!(error.contains("it takes too long for these objects"), "{text}: {error}");
    }
}

#[test]
fn an_evaluation_of_common_size_does_not_cost_too_much() {
    let containers: Vec<_> =
        (0..50).map(|i| json!({"name": format!("c{i}"), "image": format!("example.com/image-{i}:1.0")})).collect();
    let few = containers[..20].to_vec();
    let object = json!({"spec": {"containers": containers, "few": few}, "status": {"text": "x".repeat(100_000)}});
    let affordable = [
        "object.spec.containers.all(c, c.image.startsWith('example.com/'))",
        "object.spec.containers.all(c, c.image.matches('^example[.]com/'))",
        "object.spec.containers.map(c, c.name).size() == 50",
        "object.spec.containers.filter(c, c.name == 'c7').map(c, c.image) == ['example.com/image-7:1.0']",
        "object.spec.few.all(a, object.spec.few.exists_one(b, a.name == b.name))",
        "object.status.text.contains('x')",
        "object == object",
        "sets.contains(object.spec.containers.map(c, c.name), ['c1', 'c2'])",
    ];
    for text in affordable {
        assert_eq!(evaluate(text, &object), Ok(true), "{text}");
    }
}

#[test]
fn a_regular_expression_is_compiled_once_for_all_turns_of_a_loop() {
    let names: Vec<_> = (0..500).map(|i| format!("name-{i}")).collect();
    assert_eq!(evaluate("object.names.all(a, a.matches('^name-[0-9]+$'))", &json!({"names": names})), Ok(true));
}

#[test]
fn expressions_of_one_judgement_share_a_budget() {
    let names: Vec<_> = (0..500).map(|i| format!("name-{i}")).collect();
    let (object, expression) =
        (json!({"names": names}).to_string(), Expression::compile("object.names.all(a, a != 'x')").unwrap());
    let sides = Sides::new(None, Some(&object), std::iter::once(&expression));
    let (answers, spent) = with_budget(|| (0..10).map(|_| expression.evaluate(&sides).is_ok()).collect::<Vec<_>>());
    assert_eq!((answers.first(), answers.last(), spent), (Some(&true), Some(&false), BUDGET));
}

#[test]
fn an_object_that_costs_too_much_to_read_has_no_value() {
    let object = json!({"list": vec![1; 300_000]});
    let error = evaluate("object != null", &object).unwrap_err();
    assert!(error.contains("it takes too long for these objects"), "{error}");
    assert_eq!(evaluate("old == null", &object), Ok(true));
}

#[test]
fn every_function_that_is_taken_is_there() {
    for name in meter::FUNCTIONS.iter().flat_map(|names| names.iter()) {
        // Called with nothing that it could use, a function says anything but that it is not there.
        let text = format!("{name}(object)");
        let text = if name.contains('.') { text } else { format!("object.{name}('x')") };
        let Err(error) = evaluate(&text, &json!({})) else { continue };
        assert!(!error.contains("Undeclared"), "{name}: {error}");
    }
}

#[test]
fn an_object_that_is_too_large_is_not_looked_at() {
    let object = json!({"text": "x".repeat(MAX_OBJECT)});
    assert_eq!(evaluate("object != null", &object), Err("the object has more than 3145728 bytes".to_owned()));
    assert_eq!(evaluate("old == null", &object), Ok(true));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever a plugin writes is refused or evaluated: nothing ends the host.
    #[test]
    fn any_text_is_survived(parts in prop::collection::vec(prop::sample::select(vec![
        "object", "old", ".", "a", "[", "]", "(", ")", "{", "}", ":", "?", "==", "+", "-", "!", "&&", "||", "1", "-9223372036854775808",
        "'x'", "b'x'", "null", "in", ",", " ", "has(", ".map(x,", ".all(x,", ".exists(x, x", "size(", "duration(", "timestamp(", "%", "/", "0",
        "int(", "string(", ".substring(", "1.5e308", "u", "*", "\"", "matches(",
    ]), 0..12)) {
        if let Ok(expression) = Expression::compile(&parts.concat()) {
            let _ = answer(&expression, r#"{"a":{"a":[1,"x",null,{"a":true}]}}"#);
        }
    }
}
