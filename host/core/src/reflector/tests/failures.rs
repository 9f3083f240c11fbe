//! Failures, denials, missing kinds and unreadable objects.

use super::*;

facts! {
    a_server_error_is_no_reason_to_list { STREAMED, "
        error 500  => waiting, wait 0.8..1.6
        elapsed    => list 1
        page 7     => watch 7
        status 504 => waiting, wait 1.6..3.2
        elapsed    => list 1
        page 7     => watch 7
    " }

    retry_after_is_honoured_and_bounded { STREAMED, "
        error 503 after 7       => waiting, wait 7..7.1
        elapsed                 => list 1
        page 7                  => watch 7
        status 429 after 20     => waiting, wait 20..20.1
        elapsed                 => list 1
        page 7                  => watch 7
        status 429 after 1      => waiting, wait 3.2..6.4
        elapsed                 => list 1
        page 7                  => watch 7
        status 429 after 999999 => waiting, wait 60..60.1
    " }

    a_kind_that_is_gone_for_a_minute_has_no_objects { STREAMED, "
        status 404 => missing, wait 0.5..1
        elapsed    => resolve
        gone       => missing, wait 1..2
        pass 58
        elapsed    => resolve
        gone       => wait 2..4
        elapsed    => resolve
        gone       => begin back, finish 7, wait 4..8
        pass 600
        elapsed    => resolve
        gone       => wait 8..16
        elapsed    => resolve
        resolved   => relist reappeared, listing, stream
        opened     => begin
        added a@90 => upsert a@90
        complete 91 => finish 91, watching
    " }

    a_kind_that_is_gone_and_not_only_gone_keeps_its_objects { STREAMED, "
        status 404 => missing, wait 0.5..1
        elapsed    => resolve
        gone       => missing, wait 1..2
        pass 50
        elapsed    => resolve
        status 503 => waiting, wait 0.8..1.6
        elapsed    => resolve
        gone       => missing, wait 2..4
        pass 50
        elapsed    => resolve
        missing    => missing, wait 4..8
        elapsed    => resolve
        gone       => missing, wait 8..16
        pass 40
        elapsed    => resolve
        gone       => wait 15..30
    " }

    a_kind_that_never_was_there_has_nothing_to_lose { "
        start      => resolving, resolve
        gone       => missing, wait 0.5..1
        pass 300
        elapsed    => resolve
        gone       => wait 1..2
    " }

    a_denied_list_is_tried_again_slowly { "
        start      => resolving, resolve
        resolved   => listing, stream
        status 403 => denied, wait 30..33
        elapsed    => listing, stream
        status 401 => unauthenticated, wait 30..33
        elapsed    => listing, stream
        opened     => begin
    " }

    a_denied_watch_is_tried_again_slowly_and_goes_on { STREAMED, "
        pass 6
        ended      => list 1
        page 7     => watch 7
        status 403 => denied, wait 30..33
        elapsed    => list 1
        page 7     => watch 7
        status 403 => wait 30..33
        elapsed    => list 1
        page 7     => watch 7
        opened     => watching
    " }

    a_denied_discovery_is_tried_again_slowly { "
        start      => resolving, resolve
        status 403 => denied, wait 30..33
        elapsed    => resolve
        cut        => waiting, wait 0.8..1.6
        elapsed    => resolve
        resolved   => listing, stream
    " }

    a_kind_that_is_not_served_is_looked_for_every_half_minute_in_the_end { "
        start    => resolving, resolve
        missing  => missing, wait 0.5..1
        elapsed  => resolve
        missing  => wait 1..2
        elapsed  => resolve
        status 404 => missing, wait 2..4
        elapsed  => resolve
        missing  => missing, wait 4..8
        elapsed  => resolve
        missing  => wait 8..16
        elapsed  => resolve
        missing  => wait 15..30
        elapsed  => resolve
        missing  => wait 15..30
        elapsed  => resolve
        resolved => listing, stream
    " }

    a_kind_that_vanishes_from_list_or_watch_is_looked_for { "
        start          => resolving, resolve
        resolved       => listing, stream
        opened         => begin
        missing        => abort, missing, wait 0.5..1
        elapsed        => resolve
        resolved       => listing, stream
        status 400     => list 500
        page 7 a@5 + T => begin, upsert a@5, list 500 from T
        status 404     => abort, missing, wait 1..2
        elapsed        => resolve
        resolved       => listing, stream
        opened         => begin
        complete 9     => finish 9, synced, watching
        error 404      => missing, wait 2..4
        elapsed        => resolve
        resolved       => relist reappeared, listing, stream
        missing        => missing, wait 4..8
        elapsed        => resolve
        resolved       => relist reappeared, waiting, wait 1.6..3.2
        elapsed        => listing, stream
    " }

    an_object_that_cannot_be_read_is_skipped { PAGED, "
        line {\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"a\"}}} => unreadable
        line {\"type\":\"DELETED\",\"object\":5} => unreadable
        modified b@9 => upsert b@9
        error 410    => relist expired, resolving, resolve
        resolved     => listing, list 500
        body {\"metadata\":{\"resourceVersion\":\"10\"},\"items\":[7,{\"metadata\":{\"name\":\"a\"}}]} => begin, unreadable, unreadable, finish 10, watch 10
    " }

    a_line_that_is_no_watch_line_ends_the_watch { STREAMED, "
        line <html>          => waiting, wait 0.8..1.6
        elapsed              => list 1
        page 7               => watch 7
        opened               => watching
        line {\"type\":\"X\"} => waiting, wait 1.6..3.2
        elapsed              => list 1
        page 7               => watch 7
    " }

    a_line_that_is_no_watch_line_ends_a_streaming_list { "
        start     => resolving, resolve
        resolved  => listing, stream
        opened    => begin
        line {}   => abort, waiting, wait 0.8..1.6
        elapsed   => listing, list 500
    " }

    a_list_without_a_version_is_not_taken_and_is_read_again_after_a_while { "
        start      => resolving, resolve
        resolved   => listing, stream
        status 400 => list 500
        body {\"metadata\":{},\"items\":[]} => waiting, wait 0.8..1.6
        elapsed    => listing, list 500
        body {\"items\":[]} => waiting, wait 1.6..3.2
        elapsed    => listing, list 500
        body {\"metadata\":{\"resourceVersion\":\"\"},\"items\":[]} => waiting, wait 3.2..6.4
        elapsed    => listing, list 500
        page 7 a@5 => begin, upsert a@5, finish 7, synced, watch 7
    " }

    a_streaming_list_without_a_version_is_not_taken { "
        start    => resolving, resolve
        resolved => listing, stream
        opened   => begin
        added a@5 => upsert a@5
        line {\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}} => abort, waiting, wait 0.8..1.6
        elapsed  => listing, list 500
    " }

    a_kind_that_is_gone_when_its_list_is_begun_anew_is_looked_for { STREAMED, "
        error 410    => relist expired, resolving, resolve
        cut          => waiting, wait 0.8..1.6
        elapsed      => resolve
        missing      => missing, wait 0.5..1
        elapsed      => resolve
        resolved     => relist reappeared, waiting, wait 1.6..3.2
        elapsed      => listing, stream
    " }
}

facts! {
    invariant_5_an_object_that_cannot_be_read_is_removed_when_it_is_deleted { STREAMED, "
        added b@8          => upsert b@8
        modified deep b@9  => upsert b@9, unreadable
        deleted deep b@10  => remove b@10
        deleted deep a@11  => remove a@11
    " }

    an_object_of_a_list_that_cannot_be_read_is_shown_without_its_content { "
        start            => resolving, resolve
        resolved         => listing, stream
        opened           => begin
        added deep a@5   => upsert a@5, unreadable
        deleted deep a@6 => remove a@6
        complete 7       => finish 7, synced, watching
    " }
}

#[test]
fn an_object_that_nests_too_deep_is_not_shown_as_it_was() {
    let effects = play(&[STREAMED, "modified deep a@8 => upsert a@8, unreadable"]);
    let [.., Effect::Upsert(outline), Effect::Unreadable { key, why }] = &*effects else { panic!("{effects:?}") };
    assert_eq!(key.as_ref(), Some(outline.key()));
    assert_eq!(outline.unreadable(), Some(crate::object::Unreadable::TooDeep));
    assert!(!outline.json().contains("spec"), "{}", outline.json());
    assert!(why.starts_with("cannot read v1 ConfigMap ns/a: objects and arrays are nested too deep"), "{why}");
}

#[test]
fn an_object_that_cannot_be_read_is_named_and_not_shown() {
    let mut effects = play(&[
        STREAMED,
        r#"line {"type":"ADDED","object":{"metadata":{"namespace":"n","name":"s"},"data":{"password":"c2VjcmV0"}}} => unreadable"#,
    ]);
    let Some(Effect::Unreadable { key, why }) = effects.pop() else { panic!("the object cannot be read") };
    assert_eq!(key, Some(Key::new(Some("n"), "s")));
    assert!(why.starts_with("cannot read v1 ConfigMap n/s: "), "{why}");
    assert!(!why.contains("c2VjcmV0"), "{why}");
}

#[test]
fn failures_are_described_in_words() {
    let reason = |line: &str| {
        let effects = play(&[STREAMED, line]);
        effects.into_iter().rev().find_map(|effect| match effect {
            Effect::State(
                State::Waiting { reason, .. }
                | State::Unauthenticated(reason)
                | State::Denied(reason)
                | State::Missing(reason),
            ) => Some(reason),
            _ => None,
        })
    };
    assert_eq!(reason("cut => waiting, wait 0.8..1.6").unwrap(), "connection reset");
    assert_eq!(
        reason("error 503 => waiting, wait 0.8..1.6").unwrap(),
        "the server answered 503 Because: status of the test"
    );
    assert_eq!(
        reason("status 403 => denied, wait 30..33").unwrap(),
        "the server answered 403 Because: status of the test"
    );
    let status = Status { code: 429, message: "429 Too Many Requests: later".to_owned(), ..Status::default() };
    assert_eq!(super::answer::describe(&status), "the server answered 429 Too Many Requests: later");
    assert_eq!(reason("missing => missing, wait 0.5..1").unwrap(), "no such kind");
    assert_eq!(reason("ended => waiting, wait 0.8..1.6").unwrap(), "the watch ended as soon as it began");
    let long = format!("status 403 {} => denied, wait 30..33", "ä".repeat(10_000));
    assert_eq!(reason(&long).unwrap().chars().count(), 501);
}

#[test]
fn failures_are_counted_by_what_one_can_do_about_them() {
    let status = |code| Failure::Status(Status { code, ..Status::default() });
    let codes = [400, 401, 403, 404, 410, 422, 429, 500, 503, 504, u16::MAX];
    assert_eq!(
        codes.map(|code| status(code).as_str()),
        [
            "refused",
            "unauthenticated",
            "denied",
            "missing",
            "expired",
            "refused",
            "throttled",
            "server_error",
            "server_error",
            "server_error",
            "server_error",
        ]
    );
    assert_eq!(Failure::Transport("reset".to_owned()).as_str(), "unreachable");
    assert_eq!(Failure::Gone("gone".to_owned()).as_str(), "missing");
}
