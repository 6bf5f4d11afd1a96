//! What the servers' pairs of two-speed disks take and save over time.
//!
//! A sample belongs to the hour in which it ends, so an hour is exact up to the time between two samples.

use crate::mirror::show;
use crate::request::device::Mirroring;
use crate::request::machine::Machine;
use crate::request::pair::Account;
use ebb_mirror::{Ack, PolicyKind};
use ebb_output::table;
use ebb_power::Scales;
use ebb_types::{Bytes, Joules, ServerId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const DAY_SECONDS: f64 = 86_400.0;

type Accounts = BTreeMap<ServerId, Account>;

/// Accounts of all pairs since the start of the trace.
#[derive(Default)]
pub struct Pairs {
    start: u64,
    /// The last sample.
    until: u64,
    /// Nanoseconds of an hour of the trace.
    hour: u64,
    at_start: Accounts,
    at_sample: Accounts,
    /// By hour of the trace and server.
    hours: BTreeMap<(u64, ServerId), Account>,
}

/// Where the servers' data is on pairs: their policy, and what it saved. Everything is modelled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairsReport {
    pub policy: PolicyKind,
    pub ack: Ack,
    /// Of each disk.
    pub log_bytes: u64,
    pub scales: Scales,
    pub saved_joules: Joules,
    /// Shares of the energy of all servers awake with disks of one speed.
    pub servers_saved: f64,
    pub disks_saved: f64,
    pub saved: f64,
    /// Share of the disks' time at low speed, while their server was awake. `None`: none was.
    pub low_share: Option<f64>,
    /// The same by server and hour of the trace. `None`: no server was awake.
    pub low_share_by_server_hour: Option<Spread>,
    /// Changes of speed of a disk in a day of simulated time, asleep or not: the mean, and the disk with the most.
    pub changes_per_disk_day: f64,
    pub most_changes_per_disk_day: f64,
    pub hours: Vec<HourRow>,
}

/// How a figure is spread over server-hours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub count: u64,
    pub p10: f64,
    pub p50: f64,
    pub p90: f64,
}

/// An hour of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HourRow {
    /// Simulated seconds since the start of the trace.
    pub at_seconds: f64,
    /// Servers awake, over the hour.
    pub mean_servers_awake: f64,
    /// Share of the time at low speed: of all disks in servers awake, of the server with the least and with the most.
    pub low_share: f64,
    pub least_low_share: f64,
    pub most_low_share: f64,
    pub changes: u64,
}

fn accounts(machines: &BTreeMap<ServerId, Machine>, now: u64) -> Accounts {
    machines.iter().filter_map(|(id, machine)| Some((*id, machine.disk.account(now)?))).collect()
}

fn sum<'a>(accounts: impl Iterator<Item = &'a Account>) -> Account {
    accounts.fold(Account::default(), |mut sum, account| {
        sum += *account;
        sum
    })
}

impl Pairs {
    /// The trace begins now. `hour`: nanoseconds of one of its hours.
    pub fn begin(&mut self, machines: &BTreeMap<ServerId, Machine>, now: u64, hour: u64) {
        let at_start = accounts(machines, now);
        *self = Pairs {
            start: now,
            until: now,
            hour,
            at_sample: at_start.clone(),
            at_start,
            hours: BTreeMap::new(),
        };
    }

    /// Notes what happened since the last sample, and returns its sum.
    pub fn sample(&mut self, machines: &BTreeMap<ServerId, Machine>, now: u64) -> Option<Account> {
        let accounts = accounts(machines, now);
        let hour = now.saturating_sub(self.start + 1).checked_div(self.hour)?;
        let mut all = Account::default();
        for (id, account) in &accounts {
            let since = *account - self.at_sample[id];
            all += since;
            *self.hours.entry((hour, *id)).or_default() += since;
        }
        (self.at_sample, self.until) = (accounts, now);
        (!self.at_sample.is_empty()).then_some(all)
    }

    /// Up to the last sample. `always_on`, `asleep`: the power model's energy of all servers awake, and as they slept.
    pub fn report(&self, mirroring: &Mirroring, always_on: Joules, asleep: Joules) -> Option<PairsReport> {
        let days = self.seconds() / DAY_SECONDS;
        let each: Vec<Account> =
            self.at_sample.iter().map(|(id, account)| *account - self.at_start[id]).collect();
        let all = sum(each.iter());
        let most = each.iter().flat_map(|account| account.changes).max()?;
        let a_day = |changes: f64| if days > 0.0 { changes / days } else { 0.0 };
        let scales = Scales::new(always_on, asleep, all.one_speed, all.taken);
        let disks = 2.0 * each.len() as f64;
        Some(PairsReport {
            policy: mirroring.settings.kind,
            ack: mirroring.settings.ack,
            log_bytes: mirroring.log_bytes,
            scales,
            saved_joules: scales.saved(),
            servers_saved: scales.share(scales.servers_saved),
            disks_saved: scales.share(scales.disks_saved),
            saved: scales.share(scales.saved()),
            low_share: all.low_share(),
            low_share_by_server_hour: spread(self.hours.values().filter_map(Account::low_share).collect()),
            changes_per_disk_day: a_day(all.changes.iter().sum::<u64>() as f64 / disks),
            most_changes_per_disk_day: a_day(most as f64),
            hours: self.hour_rows(),
        })
    }

    fn seconds(&self) -> f64 {
        (self.until - self.start) as f64 / 1e9
    }

    fn hour_rows(&self) -> Vec<HourRow> {
        let hours: BTreeSet<u64> = self.hours.keys().map(|(hour, _)| *hour).collect();
        let length = self.hour as f64 / 1e9;
        let row = |hour: u64| {
            let at_seconds = hour as f64 * length;
            let seconds = length.min(self.seconds() - at_seconds);
            let of = || self.hours.range((hour, ServerId(0))..(hour + 1, ServerId(0))).map(|(_, a)| a);
            let all = sum(of());
            let shares = || of().filter_map(Account::low_share);
            Some(HourRow {
                at_seconds,
                mean_servers_awake: all.seconds / 2.0 / seconds,
                low_share: all.low_share()?,
                least_low_share: shares().fold(1.0, f64::min),
                most_low_share: shares().fold(0.0, f64::max),
                changes: all.changes.iter().sum(),
            })
        };
        hours.into_iter().filter_map(row).collect()
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

impl PairsReport {
    /// Header and rows of the table of what each scale saved.
    pub fn scale_rows(&self) -> ([&'static str; 3], Vec<[String; 3]>) {
        let s = &self.scales;
        let row = |what: &str, energy: Joules| {
            [what.to_owned(), format!("{:.3}", energy.0 / 3.6e6), percent(s.share(energy))]
        };
        let rows = vec![
            row("all servers awake, disks of one speed", s.always_on),
            row("saved by servers that sleep", s.servers_saved),
            row("saved by disks at low speed", s.disks_saved),
            row("saved by both", self.saved_joules),
            row("taken by servers without disks", s.servers),
            row("taken by disks", s.disks),
        ];
        (["energy, kWh (modelled)", "", "share"], rows)
    }

    /// Policy, time at low speed and changes, in words.
    pub fn behaviour(&self) -> String {
        let low = self.low_share.map_or("–".to_owned(), percent);
        let spread = self.low_share_by_server_hour.map_or(String::new(), |s| {
            let [p10, p50, p90] = [s.p10, s.p50, s.p90].map(percent);
            format!(" (by hour and server: p10 {p10}, p50 {p50}, p90 {p90})")
        });
        format!(
            "pairs of two-speed disks, policy {}, logs of {}: {low} of the time awake at low speed{spread}; {:.1} changes of \
             speed per disk and day, at most {:.1}",
            show::policy(self.policy),
            Bytes(self.log_bytes),
            self.changes_per_disk_day,
            self.most_changes_per_disk_day
        )
    }
}

impl fmt::Display for PairsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (header, rows) = self.scale_rows();
        let mut text = "\n".to_owned();
        table(&mut text, &header, &rows.into_iter().map(Vec::from).collect::<Vec<_>>());
        writeln!(f, "{text}{}", self.behaviour())
    }
}

fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let at = |share: f64| values[(share * last as f64).round() as usize];
    Some(Spread { count: values.len() as u64, p10: at(0.1), p50: at(0.5), p90: at(0.9) })
}
