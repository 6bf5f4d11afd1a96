//! Planted defects in the protocol cores: the harness must find each of them within the seeds of the sweep, by the rule
//! that it breaks.

use ebb_chunkserver::PlantedBug;
use ebb_meta::PlantedBug as MetaBug;
use ebb_sim::{Configure, Core, cluster};
use ebb_store::PlantedBug as StoreBug;
use ebb_testing::search::{self, Hunt, run};

/// Each test begins with a seed shortly before one that notices its defect, as a search over many found it.
pub const NEAR: u64 = 30;
const ALL: u64 = 1500;

fn is_found(first: u64, name: &str, plant: &Configure, rules: &[&str]) {
    let hunt = Hunt { name, first, near: NEAR, all: ALL, rules };
    search::is_found(&hunt, |seed| run(seed, cluster(plant)), |seed| run(seed, cluster(&|_| {})));
}

fn in_server(first: u64, bug: PlantedBug, rules: &[&str]) {
    let plant = move |core: Core| {
        if let Core::Server(config) = core {
            config.planted = Some(bug);
        }
    };
    is_found(first, &format!("{bug:?}"), &plant, rules);
}

fn in_member(first: u64, bug: MetaBug, rules: &[&str]) {
    let plant = move |core: Core| {
        if let Core::Member(config) = core {
            config.timing.planted = Some(bug);
        }
    };
    is_found(first, &format!("{bug:?}"), &plant, rules);
}

fn in_store(first: u64, bug: StoreBug, rules: &[&str]) {
    let plant = move |core: Core| {
        if let Core::Store(config) = core {
            config.planted = Some(bug);
        }
    };
    is_found(first, &format!("{bug:?}"), &plant, rules);
}

#[test]
fn a_store_that_answers_before_it_syncs_is_found() {
    // After a power cut segments have holes, and the store does not open although its files were not tampered with
    // (R11).
    in_store(1, StoreBug::SkipSync, &["linearizability", "R1", "R4", "R5", "R6", "R11"]);
}

#[test]
fn a_lost_page_that_reads_as_zeroes_is_found() {
    in_store(16, StoreBug::LostPageIsEmpty, &["linearizability", "R4", "R5", "R9"]);
}

#[test]
fn a_primary_that_does_not_wait_for_the_fence_is_found() {
    // Messages of an older primary are not refused: their data is in one offload only, which is dropped (R6), or on a
    // server that is about to sleep (R7), or on one that is no longer a holder and keeps it as debt forever (liveness).
    in_server(2, PlantedBug::SkipFence, &["linearizability", "liveness", "R1", "R4", "R5", "R6", "R7"]);
}

#[test]
fn a_restart_that_begins_no_epoch_is_found() {
    // A primary gives numbers of versions again, and what was in memory is not computed again.
    let rules = ["R1", "R4", "R5", "R6", "linearizability", "coded", "liveness"];
    in_member(1, MetaBug::RestartInEpoch, &rules);
}

#[test]
fn an_acknowledgement_before_the_last_copy_is_found() {
    in_server(1, PlantedBug::AckEarly, &["R5"]);
}

#[test]
fn a_reclaim_that_overwrites_newer_records_is_found() {
    in_server(1, PlantedBug::ReclaimOlder, &["R1", "R4", "linearizability"]);
}

#[test]
fn offload_dropped_before_it_is_reclaimed_is_found() {
    in_server(1, PlantedBug::DropEarly, &["R6"]);
}

#[test]
fn a_copy_dropped_before_the_one_that_takes_its_place_is_complete_is_found() {
    in_server(
        1,
        PlantedBug::DropMoving,
        &["linearizability", "liveness", "R1", "R4", "R5", "R6", "survival"],
    );
}

#[test]
fn a_copy_that_is_still_being_made_and_counts_as_one_is_found() {
    in_member(
        1,
        MetaBug::CountNewcomers,
        &["linearizability", "liveness", "R1", "R4", "R5", "R6", "survival"],
    );
}

#[test]
fn a_holder_that_is_relied_on_before_it_has_everything_is_found() {
    // The former holder drops what the new one does not have yet (R6), or who wakes never fetches it.
    in_member(1, MetaBug::CoverUnasked, &["R6", "R5", "R4", "linearizability"]);
}

#[test]
fn a_settlement_that_forgets_requests_is_found() {
    in_server(1010, PlantedBug::ForgetRequests, &["linearizability"]);
}

#[test]
fn a_request_that_is_repeated_although_it_may_be_forgotten_is_found() {
    in_server(108, PlantedBug::RepeatForgotten, &["linearizability"]);
}

#[test]
fn a_deletion_that_is_forgotten_before_all_have_it_is_found() {
    in_server(60, PlantedBug::ForgetEarly, &["R4"]);
}

#[test]
fn a_store_that_is_believed_to_be_the_one_that_was_is_found() {
    in_member(14, MetaBug::TrustAnyStore, &["linearizability", "R1", "R4", "R5", "R6", "given up"]);
}

#[test]
fn a_primary_that_serves_before_that_is_on_record_is_found() {
    // A server that was away in its epoch is taken back as if it had missed nothing.
    in_server(1, PlantedBug::ServeUnrecorded, &["linearizability", "R1", "R4", "R5", "R6"]);
}

#[test]
fn a_primary_that_serves_without_a_lease_is_found() {
    in_server(1, PlantedBug::IgnoreLease, &["R2", "linearizability"]);
}

#[test]
fn a_lease_that_counts_from_its_arrival_is_found() {
    // It waited for a server that stood still, or in a network that did, while another one took over.
    in_server(140, PlantedBug::LeaseFromArrival, &["R2", "linearizability"]);
}

#[test]
fn a_server_that_sleeps_while_its_store_works_is_found() {
    in_server(54, PlantedBug::SleepBusy, &["R7"]);
}

#[test]
fn a_refusal_for_lack_of_space_that_is_over_is_found() {
    in_server(56, PlantedBug::RememberFull, &["R10"]);
}

#[test]
fn a_lost_replica_whose_peers_sleep_on_is_found() {
    in_member(56, MetaBug::LeaveAlone, &["R8", "liveness"]);
}

#[test]
fn a_leader_that_wakes_and_drains_a_server_over_and_over_is_found() {
    in_member(2150, MetaBug::ForgetRelief, &["R3"]);
}

#[test]
fn damage_that_a_scrub_passes_over_is_found() {
    in_server(54, PlantedBug::OverlookDamage, &["R9"]);
}

#[test]
fn checksums_of_other_bytes_than_those_answered_are_found() {
    in_server(1, PlantedBug::WholeChecksums, &["R14"]);
}

#[test]
fn a_holder_in_a_shared_rack_is_found() {
    // Gears wait for it too: the rest in some gear ends when copies are in different racks, or at its time limit.
    in_member(1, MetaBug::IgnoreRacks, &["R13", "liveness"]);
}

#[test]
fn a_wake_up_that_never_tries_another_path_is_found() {
    in_member(15, MetaBug::OnePath, &["R8", "liveness"]);
}

#[test]
fn a_server_that_sleeps_although_nothing_has_proved_to_wake_it_is_found() {
    in_member(12, MetaBug::TrustAnyPath, &["R8"]);
}

#[test]
fn a_copy_that_survived_and_is_not_taken_back_is_found() {
    in_member(530, MetaBug::ForgetFallback, &["liveness"]);
}

#[test]
fn gears_that_forget_the_dwell_time_are_found() {
    in_member(1, MetaBug::ForgetDwell, &["dwell"]);
}

#[test]
fn strips_dropped_before_their_column_has_them_are_found() {
    in_server(1, PlantedBug::DropStripsEarly, &["R6"]);
}

#[test]
fn a_set_that_hibernates_with_parity_in_memory_only_is_found() {
    in_server(79, PlantedBug::SleepIndebted, &["R7"]);
}

#[test]
fn a_set_that_is_to_hibernate_while_a_column_is_rebuilt_is_found() {
    // The state refuses that (R3). Or servers that owe strips never come to rest.
    in_member(1, MetaBug::RestOwing, &["R3", "R7", "liveness"]);
}

#[test]
fn offload_that_a_former_holder_keeps_and_nobody_lists_is_found() {
    in_server(1, PlantedBug::SkipFormer, &["linearizability", "R4", "R5", "R6"]);
}

#[test]
fn a_column_that_is_full_before_a_complete_server_was_heard_is_found() {
    in_server(70, PlantedBug::TrustAnyListing, &["R4", "R6", "coded"]);
}

#[test]
fn a_column_that_answers_before_it_has_caught_up_is_found() {
    in_server(1, PlantedBug::AnswerBehind, &["coded"]);
}

#[test]
fn a_hung_disk_that_is_trusted_is_found() {
    in_member(50, MetaBug::TrustStalled, &["liveness"]);
}

#[test]
fn a_leader_that_hears_no_server_and_leads_on_is_found() {
    in_member(5, MetaBug::LeadDeaf, &["liveness"]);
}

#[test]
fn a_row_beyond_repair_that_holds_its_column_up_is_found() {
    in_server(96, PlantedBug::LostRowLacks, &["liveness"]);
}

#[test]
fn a_holder_that_is_no_source_of_a_salvage_is_found() {
    in_server(1, PlantedBug::WithholdFromSalvage, &["last resort"]);
}

#[test]
fn deletions_of_columns_that_are_kept_for_ever_are_found() {
    in_server(1, PlantedBug::KeepTombstones, &["R19"]);
}

#[test]
fn a_server_that_is_given_up_although_its_disk_is_needed_is_found() {
    // What it had is lost, or its group waits for it for ever.
    in_member(121, MetaBug::GiveUpNeeded, &["given up", "liveness"]);
}

#[test]
fn a_lease_that_an_earlier_run_asked_for_is_found() {
    in_server(97, PlantedBug::LeaseOfAnyRun, &["R2"]);
}

#[test]
fn a_full_cluster_that_crashes_and_needs_room_is_found() {
    // Most seeds show it at rest already: its records stay open (R19).
    in_server(105, PlantedBug::NoteNothing, &["liveness", "R10", "R19"]);
}

#[test]
fn a_connection_whose_end_is_not_noticed_is_found() {
    in_server(1, PlantedBug::OverlookBreaks, &["liveness"]);
}

#[test]
fn requests_that_were_turned_away_and_count_for_ever_are_found() {
    in_server(1, PlantedBug::KeepTurnedAway, &["liveness", "last resort"]);
}

#[test]
fn a_server_that_cannot_read_and_calls_others_silent_is_found() {
    in_server(520, PlantedBug::SuspectUnread, &["R12"]);
}

#[test]
fn a_pack_that_is_passed_over_for_a_failed_write_in_it_is_found() {
    in_server(30, PlantedBug::RemnantOfChunk, &["R4", "R6", "coded"]);
}

#[test]
fn an_owner_whose_claim_has_ended_and_that_writes_on_is_found() {
    in_server(1, PlantedBug::IgnoreClaims, &["linearizability"]);
}

#[test]
fn a_claim_that_is_believed_without_asking_the_store_is_found() {
    in_server(1, PlantedBug::BelieveAnyClaim, &["linearizability"]);
}

#[test]
fn zeroing_of_what_was_written_since_the_look_is_found() {
    in_server(550, PlantedBug::LookAhead, &["linearizability"]);
}
