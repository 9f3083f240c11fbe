//! Watches: how they end, and where they go on.

use super::*;

facts! {
    a_watch_that_ends_in_time_is_followed_by_one_from_the_last_version { STREAMED, "
        modified a@8 => upsert a@8
        pass 600
        ended        => watch 8
        opened       =>
        bookmark 12  => covered 12
        pass 600
        ended        => watch 12
        opened       =>
        deleted a@13 => remove a@13
        pass 600
        ended        => watch 13
    " }

    a_watch_that_ends_before_its_time_goes_on_after_a_look_at_the_version { STREAMED, "
        pass 6
        ended  => list 1
        page 7 => watch 7
        opened =>
        modified a@8 => upsert a@8
        pass 290
        ended  => list 1
        page 8 => watch 8
    " }

    a_short_watch_with_an_event_goes_on_without_a_wait { STREAMED, "
        modified a@8 => upsert a@8
        ended        => list 1
        page 8       => watch 8
        opened       =>
        modified a@9 => upsert a@9
        ended        => list 1
        page 9       => watch 9
    " }

    watches_that_end_as_they_begin_back_off { STREAMED, "
        ended      => waiting, wait 0.8..1.6
        elapsed    => list 1
        page 7     => watch 7
        opened     => watching
        bookmark 8 => covered 8
        ended      => waiting, wait 1.6..3.2
        elapsed    => list 1
        page 8     => watch 8
        ended      => waiting, wait 3.2..6.4
        elapsed    => list 1
        page 8     => watch 8
    " }

    versions_do_not_fall_during_a_watch { STREAMED, "
        modified a@9 => upsert a@9
        modified b@8 => upsert b@8
        bookmark 6   =>
        bookmark x   =>
        ended        => list 1
        page 9       => watch 9
    " }

    a_lost_connection_is_resumed_without_a_list_and_waits_ever_longer { STREAMED, "
        modified a@8 => upsert a@8
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        page 8       => watch 8
        cut          => waiting, wait 1.6..3.2
        elapsed      => list 1
        page 8       => watch 8
        opened       => watching
        modified a@9 => upsert a@9
        pass 119
        cut          => waiting, wait 3.2..6.4
        elapsed      => list 1
        page 9       => watch 9
        cut          => waiting, wait 6.4..12.8
        elapsed      => list 1
        page 9       => watch 9
        cut          => waiting, wait 12.8..25.6
        elapsed      => list 1
        page 9       => watch 9
        cut          => waiting, wait 25.6..51.2
        elapsed      => list 1
        page 9       => watch 9
        cut          => waiting, wait 30..60
        elapsed      => list 1
        page 9       => watch 9
        cut          => waiting, wait 30..60
    " }

    two_minutes_of_watching_make_the_next_wait_short_again { STREAMED, "
        cut         => waiting, wait 0.8..1.6
        elapsed     => list 1
        page 7      => watch 7
        cut         => waiting, wait 1.6..3.2
        elapsed     => list 1
        page 7      => watch 7
        opened      => watching
        bookmark 8  => covered 8
        pass 60
        ended       => list 1
        page 8      => watch 8
        opened      =>
        bookmark 9  => covered 9
        pass 60
        cut         => waiting, wait 0.8..1.6
    " }

    an_expired_version_as_event_is_listed_anew_at_once { STREAMED, "
        error 410    => relist expired, resolving, resolve
        resolved     => listing, stream
        opened       => begin
        added a@5    => upsert a@5
        complete 12  => finish 12, watching
    " }

    an_expired_version_as_status_is_listed_anew_at_once { PAGED, "
        modified a@8 => upsert a@8
        ended        => list 1
        page 8       => watch 8
        status 410   => relist expired, resolving, resolve
        resolved     => listing, list 500
        page 12 b@6  => begin, upsert b@6, finish 12, watch 12
        opened       => watching
    " }

    versions_that_expire_again_and_again_back_off { PAGED, "
        error 410  => relist expired, resolving, resolve
        resolved   => listing, list 500
        page 8     => begin, finish 8, watch 8
        opened     => watching
        error 410  => relist expired, waiting, wait 1.6..3.2
        elapsed    => resolve
        resolved   => listing, list 500
        page 9     => begin, finish 9, watch 9
        status 410 => relist expired, waiting, wait 3.2..6.4
        elapsed    => resolve
        resolved   => listing, list 500
        page 9     => begin, finish 9, watch 9
        opened     => watching
        bookmark 9 => covered 9
        pass 120
        error 410  => relist expired, resolving, resolve
        resolved   => listing, list 500
    " }

    a_version_that_has_not_come_yet_is_listed_anew { PAGED, "
        ended                      => waiting, wait 0.8..1.6
        elapsed                    => list 1
        page 7                     => watch 7
        status 504 too large after 1 => relist too_large, waiting, wait 1..1.6
        elapsed                    => resolve
        resolved                   => listing, list 500
    " }

    a_watch_that_is_not_accepted_is_listed_anew_ever_more_slowly { PAGED, "
        error 400  => relist refused, resolving, resolve
        resolved   => listing, list 500
        page 7     => begin, finish 7, watch 7
        status 405 => relist refused, waiting, wait 1.6..3.2
    " }

    a_watch_that_is_heard_is_not_suspected { STREAMED, "
        pass 6
        ended       => list 1
        page 7      => watch 7
        opened      =>
        bookmark 7  => covered 7
        pass 600
        ended       => watch 7
        opened      =>
        bookmark 3  =>
        pass 600
        ended       => list 1
    " }

    what_answers_no_question_changes_nothing { "
        resolved    =>
        elapsed     =>
        start       => resolving, resolve
        start       =>
        opened      =>
        added a@5   =>
        resolved    => listing, stream
        added a@5   =>
        page 7 a@5  =>
        opened      => begin
        opened      =>
        complete 7  => finish 7, synced, watching
        page 7 a@5  =>
        cut         => waiting, wait 0.8..1.6
        ended       =>
        modified a@8 =>
        cut         =>
        elapsed     => list 1
        page 7      => watch 7
        elapsed     =>
    " }
}

#[test]
fn watches_of_different_seeds_end_at_different_times() {
    let timeouts = (0..200).map(|seed| {
        let mut reflector = Reflector::new(Config { seed, ..config() });
        let mut effects = Vec::new();
        for input in [Input::Start, Input::Resolved] {
            reflector.step(Duration::ZERO, input, &mut effects);
        }
        let Some(Effect::Watch { timeout, .. }) = effects.pop() else { panic!("it streams") };
        timeout.as_secs()
    });
    let minutes: std::collections::BTreeSet<_> = timeouts.map(|seconds| seconds / 60).collect();
    assert_eq!(minutes.into_iter().collect::<Vec<_>>(), [5, 6, 7, 8, 9]);
}
