//! Versions that go back.

use super::*;

facts! {
    invariant_4_a_list_whose_version_went_back_is_accepted_as_a_whole { PAGED, "
        bookmark 40  => covered 40
        error 410    => relist expired, resolving, resolve
        resolved     => listing, list 500
        page 20 a@18 => tell, begin back, upsert a@18, finish 20, watch 20
        opened       => watching
        error 410    => relist expired, waiting, wait 1.6..3.2
        elapsed      => resolve
        resolved     => listing, list 500
        page 21      => begin, finish 21, watch 21
    " }

    invariant_4_what_another_reflector_has_found_is_followed_whatever_the_version { STREAMED, "
        restored     => relist went_back, resolving, resolve
        restored     =>
        resolved     => listing, list 500
        page 90 a@3  => begin back, upsert a@3, finish 90, watch 90
        opened       => watching
        restored     => relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 91 a@3  => begin back, upsert a@3, finish 91, watch 91
        opened       => watching
        restored     => relist went_back, resolving, resolve
    " }

    invariant_4_what_another_reflector_has_found_is_followed_before_a_watch_goes_on { PAGED, "
        cut          => waiting, wait 0.8..1.6
        restored     =>
        elapsed      => list 1
        page 90      => relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 90 a@3  => begin back, upsert a@3, finish 90, watch 90
        restored     =>
        opened       => relist went_back, resolving, resolve
    " }

    invariant_4_a_list_during_which_a_restore_was_found_is_followed_by_another { PAGED, "
        error 410        => relist expired, resolving, resolve
        resolved         => listing, list 500
        page 90 a@3 + T  => begin, upsert a@3, list 500 from T
        restored         =>
        page 90 b@4      => upsert b@4, finish 90, relist went_back, resolving, resolve
        resolved         => listing, list 500
        page 91 a@2 + T  => begin back, upsert a@2, list 500 from T
        restored         =>
        status 410       => abort, list all since 91
        page 91 a@2      => begin back, upsert a@2, finish 91, relist went_back, resolving, resolve
        resolved         => listing, list 500
        page 91          => begin back, finish 91, watch 91
    " }

    invariant_4_a_first_list_during_which_a_restore_was_found_is_followed_by_another {
        "
        start        => resolving, resolve
        resolved     => listing, stream
        opened       => begin
        restored     =>
        added a@5    => upsert a@5
        complete 7   => abort, relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 3 a@2   => begin back, upsert a@2, finish 3, synced, watch 3
        "
    }

    /// Otherwise the reflectors would relist for ever.
    invariant_4_who_was_told_of_a_restore_tells_nobody { STREAMED, "
        restored     => relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 3 a@2   => begin back, upsert a@2, finish 3, watch 3
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        page 2       => tell, relist went_back, resolving, resolve
        resolved     => listing, list 500
        cut          => waiting, wait 1.6..3.2
        elapsed      => listing, list 500
        page 2       => begin back, finish 2, watch 2
    " }

    /// Reports three restores, though it follows every one. Ten minutes after the first it reports again.
    an_informer_that_finds_restores_again_and_again_reports_no_fourth { PAGED, "
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        page 6       => tell, relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 6       => begin back, finish 6, watch 6
        opened       => watching
        pass 150
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        page 5       => tell, relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 5       => begin back, finish 5, watch 5
        opened       => watching
        pass 150
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        page 4       => tell, relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 4       => begin back, finish 4, watch 4
        opened       => watching
        pass 150
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        page 3       => relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 3       => begin back, finish 3, watch 3
        opened       => watching
        pass 590
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        page 2       => tell, relist went_back, resolving, resolve
    " }

    a_restore_means_nothing_to_who_has_listed_nothing { "
        start        => resolving, resolve
        restored     =>
        resolved     => listing, stream
        restored     =>
        opened       => begin
        complete 7   => finish 7, synced, watching
    " }

    invariant_4_a_streaming_list_whose_version_went_back_is_repeated_by_pages { STREAMED, "
        bookmark 40  => covered 40
        error 410    => relist expired, resolving, resolve
        resolved     => listing, stream
        opened       => begin
        added a@18   => upsert a@18
        complete 20  => tell, abort, relist went_back, waiting, wait 1.6..3.2
        elapsed      => resolve
        resolved     => listing, list 500
        page 20 a@18 => begin back, upsert a@18, finish 20, watch 20
    " }

    invariant_4_a_lost_watch_goes_on_only_if_the_server_did_not_go_back { STREAMED, "
        bookmark 40  => covered 40
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        cut          => waiting, wait 1.6..3.2
        elapsed      => list 1
        status 404   => missing, wait 0.5..1
        elapsed      => resolve
        resolved     => relist reappeared, listing, stream
        opened       => begin
        complete 40  => finish 40, watching
        cut          => waiting, wait 3.2..6.4
        elapsed      => list 1
        page 40 a@5  => watch 40
        cut          => waiting, wait 6.4..12.8
        elapsed      => list 1
        page 39 a@5  => tell, relist went_back, waiting, wait 1.6..3.2
        elapsed      => resolve
        resolved     => listing, list 500
        page 39 a@5  => begin back, upsert a@5, finish 39, watch 39
    " }

    invariant_4_a_server_that_ends_its_watches_and_comes_back_older_is_found_out { STREAMED, "
        modified a@40 => upsert a@40
        pass 60
        ended         => list 1
        page 20       => tell, relist went_back, resolving, resolve
    " }

    invariant_4_a_silent_watch_is_followed_by_a_look_at_the_version { STREAMED, "
        bookmark 40  => covered 40
        pass 6
        ended        => list 1
        page 40 a@18 => watch 40
        opened       =>
        pass 120
        ended        => list 1
        page 40 a@18 => watch 40
        opened       =>
        pass 300
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        body []      => waiting, wait 1.6..3.2
        elapsed      => list 1
        page x       => waiting, wait 3.2..6.4
        elapsed      => list 1
        status 403   => denied, wait 30..33
        elapsed      => list 1
        page 20 a@18 => tell, relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 20 a@18 => begin back, upsert a@18, finish 20, watch 20
    " }
}

#[test]
fn invariant_4_a_reflector_that_takes_over_a_cache_notices_that_versions_went_back() {
    let mut reflector = Reflector::new(Config { seen: Some(ResourceVersion(7)), ..config() });
    play_on(
        &mut reflector,
        &["
        start        => resolving, resolve
        resolved     => listing, stream
        opened       => begin
        complete 6   => tell, abort, relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 6       => begin back, finish 6, synced, watch 6
        "],
    );
}
