//! A fake cluster for tests: it gives the answers it was set up with, and counts the requests.

use crate::source::{Recorded, Refusal, Replayed, Source, WhatIf};
use ebb_types::{
    AdminReply, AdminRequest, ClusterParams, ClusterPower, ClusterStatus, Depth, EnergyStatus, Epoch,
    GearGroup, GearMode, GearPlan, GearSize, GearStatus, GearSteps, GroupCounts, HourRecord, Incarnation,
    Joules, LoadBand, LoadOf, MetadataMember, Notice, NoticeRecord, PlannedHour, PoolId, PowerStatus, RackId,
    Schedule, ServerId, ServerState, ServerStatus, ShiftReason, ShiftRecord, StoreId, Vitals, Watts, Why,
};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The leader of a fake cluster. Clones are the same one.
#[derive(Clone)]
pub struct Leader(Arc<Mutex<Made>>);

struct Made {
    status: ClusterStatus,
    notices: Vec<NoticeRecord>,
    hours: Vec<HourRecord>,
    plan: Vec<PlannedHour>,
    shifts: Vec<ShiftRecord>,
    reachable: bool,
    refusal: Option<String>,
    asked: Vec<AdminRequest>,
    replays_take: Duration,
    answers_take: Duration,
}

fn kind(request: &AdminRequest) -> &'static str {
    match request {
        AdminRequest::Status => "status",
        AdminRequest::ListNotices { .. } => "notices",
        AdminRequest::GearPlan => "plan",
        AdminRequest::ListHours => "hours",
        AdminRequest::ListShifts => "shifts",
        _ => "act",
    }
}

impl Leader {
    pub fn new(mut status: ClusterStatus) -> Leader {
        status.power = Some(power(&status));
        Leader(Arc::new(Mutex::new(Made {
            status,
            notices: Vec::new(),
            hours: Vec::new(),
            plan: Vec::new(),
            shifts: Vec::new(),
            reachable: true,
            refusal: None,
            asked: Vec::new(),
            replays_take: Duration::ZERO,
            answers_take: Duration::ZERO,
        })))
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.0.lock().expect("no test panics with it")
    }

    pub fn status(&self) -> ClusterStatus {
        self.made().status.clone()
    }

    pub fn change(&self, change: impl FnOnce(&mut ClusterStatus)) {
        let mut made = self.made();
        change(&mut made.status);
        let fewest = (made.status.servers.len() as u32).div_ceil(3);
        made.status.gear.servers_needed = fewest.max(made.status.gear.load.ceil() as u32);
        made.status.power = Some(power(&made.status));
    }

    pub fn be_reachable(&self, reachable: bool) {
        self.made().reachable = reachable;
    }

    pub fn answers_take(&self, time: Duration) {
        self.made().answers_take = time;
    }

    pub fn replays_take(&self, time: Duration) {
        self.made().replays_take = time;
    }

    pub fn refuse(&self, why: &str) {
        self.made().refusal = Some(why.to_owned());
    }

    pub fn notice(&self, at_unix_millis: u64, notice: Notice) {
        let mut made = self.made();
        let number = made.notices.len() as u64 + 1;
        made.notices.push(NoticeRecord { number, at_unix_millis, notice });
    }

    /// Requests of a kind so far.
    pub fn asked(&self, what: &str) -> usize {
        self.made().asked.iter().filter(|request| kind(request) == what).count()
    }

    pub fn all(&self) -> usize {
        self.made().asked.len()
    }

    /// Whether nothing that changes the cluster was among them.
    pub fn only_asked(&self) -> bool {
        self.made().asked.iter().all(AdminRequest::only_asks)
    }

    pub fn last_act(&self) -> Option<AdminRequest> {
        self.made().asked.iter().rev().find(|request| !request.only_asks()).cloned()
    }

    /// A day behind it and a day ahead, as of now.
    pub fn live_a_day(&self, now_unix_millis: u64) {
        const HOUR: u64 = 3_600_000;
        let mut made = self.made();
        let this = now_unix_millis / HOUR;
        let servers = made.status.servers.len() as u32;
        let load = |hour: u64| {
            let day = (hour % 24) as f64 / 24.0 * std::f64::consts::TAU;
            f64::from(servers) * (0.4 - 0.3 * day.cos())
        };
        let awake = |hour: u64| (load(hour) * 1.1).ceil().clamp(3.0, f64::from(servers)) as u32;
        made.hours = (this - 25..this)
            .map(|hour| HourRecord {
                hour,
                peak_load: load(hour) * (0.9 + 0.02 * (hour % 7) as f64),
                terms: None,
                forecast: (hour > this - 20).then(|| load(hour)),
                gear: 2,
                servers_awake: awake(hour),
                prices: None,
                power_cycles: 7 + 9 * (hour + 25 - this),
            })
            .collect();
        made.plan = (this..this + 24)
            .map(|hour| PlannedHour {
                hour,
                from_unix_millis: hour * HOUR,
                forecast: Some(load(hour)),
                band: Some(LoadBand { low: load(hour) * 0.8, high: load(hour) * 1.3 }),
                gear: 2,
                awake: (1..=awake(hour) as u16).map(ServerId).collect(),
                asleep: (awake(hour) as u16 + 1..=servers as u16).map(ServerId).collect(),
                ..PlannedHour::default()
            })
            .collect();
        made.shifts = (1..24)
            .filter(|n| awake(this - 25 + n) != awake(this - 24 + n))
            .map(|n| ShiftRecord {
                at_unix_millis: (this - 24 + n) * HOUR,
                from_gear: 2,
                to_gear: 2,
                from_servers: awake(this - 25 + n),
                to_servers: awake(this - 24 + n),
                why: if awake(this - 24 + n) < awake(this - 25 + n) {
                    ShiftReason::FewerNeeded.to_string()
                } else {
                    ShiftReason::MoreNeeded.to_string()
                },
                woken: awake(this - 24 + n).saturating_sub(awake(this - 25 + n)),
                put_to_sleep: awake(this - 25 + n).saturating_sub(awake(this - 24 + n)),
                migrations: 31,
                took_millis: 17_400,
            })
            .collect();
        for n in 1..24 {
            let (from, to) = (awake(this - 25 + n), awake(this - 24 + n));
            if from == to {
                continue;
            }
            let number = made.notices.len() as u64 + 1;
            let size = |servers| GearSize { gear: 2, servers };
            let why = if to < from { ShiftReason::FewerNeeded } else { ShiftReason::MoreNeeded };
            made.notices.push(NoticeRecord {
                number,
                at_unix_millis: (this - 24 + n) * HOUR,
                notice: Notice::Shift { from: size(from), to: size(to), why },
            });
        }
    }
}

impl Source for Leader {
    async fn ask(&mut self, request: AdminRequest) -> Result<AdminReply, Refusal> {
        let time = self.made().answers_take;
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
        let mut made = self.made();
        made.asked.push(request.clone());
        if !made.reachable {
            return Err(Refusal::Unreachable("it was made so".to_owned()));
        }
        Ok(match request {
            AdminRequest::Status => AdminReply::Status(Box::new(made.status.clone())),
            AdminRequest::ListNotices { after } => {
                AdminReply::Notices(made.notices.iter().filter(|n| n.number > after).cloned().collect())
            }
            AdminRequest::GearPlan => {
                let hours = made.plan.clone();
                AdminReply::Plan(Box::new(GearPlan { hours, ..GearPlan::default() }))
            }
            AdminRequest::ListHours => AdminReply::Hours(made.hours.clone()),
            AdminRequest::ListShifts => AdminReply::Shifts(made.shifts.clone()),
            _ => match made.refusal.clone() {
                Some(why) => return Err(Refusal::Refused(why)),
                None => AdminReply::Done,
            },
        })
    }

    /// Half of the servers, whatever the load.
    async fn volumes(&mut self) -> Result<String, Refusal> {
        let volume = r#"{"name":"v1","size_bytes":1073741824,"created_millis":1795671376239,"pool":"cold","front_max_bytes":67108864,"moved_bytes":536870912,"in_use":true}"#;
        Ok(format!("[{volume}]"))
    }

    fn measure(
        &self,
        status: ClusterStatus,
    ) -> impl Future<Output = Result<String, String>> + Send + 'static {
        let of = status.servers.len();
        let text = format!(
            r#"{{"servers":2,"of":{of},"watts":140.0,"modelled_watts":136.4,"model_error_percent":-2.57,"by_server":[]}}"#
        );
        std::future::ready(Ok(text))
    }

    fn replay(
        &self,
        recorded: Recorded,
        wish: WhatIf,
    ) -> impl Future<Output = Result<Replayed, String>> + Send + 'static {
        let time = self.made().replays_take;
        async move {
            if !time.is_zero() {
                tokio::time::sleep(time).await;
            }
            halved(&recorded, wish)
        }
    }
}

fn halved(recorded: &Recorded, wish: WhatIf) -> Result<Replayed, String> {
    let hours = recorded.hours.len() as u32;
    if hours < 24 {
        return Err(format!("{hours} hours are recorded, and a day is needed"));
    }
    let kwh = f64::from(hours) * f64::from(wish.servers) * 0.062;
    Ok(Replayed {
        hours,
        trained_hours: 0,
        modelled_kwh: kwh / 2.0,
        always_on_modelled_kwh: kwh,
        oracle_modelled_kwh: kwh / 3.0,
        hours_short: f64::from(hours) * wish.short_goal,
        mean_servers_awake: f64::from(wish.servers) / 2.0,
        cycles_per_server_per_day: wish.cycles_per_day / 2.0,
        co2_saved_kg: None,
        loads: recorded.hours.iter().map(|hour| Some(hour.peak_load)).collect(),
        servers_awake: vec![wish.servers / 2; hours as usize],
        from_unix_millis: recorded.schedule.hour_begins(recorded.hours[0].hour),
    })
}

/// A cluster of `servers` servers in three racks, all awake.
pub fn status(servers: u16) -> ClusterStatus {
    ClusterStatus {
        params: ClusterParams {
            cluster: 1,
            instance: 1,
            chunk_bytes: 64 << 20,
            replicas: 3,
            groups: u32::from(servers) * 64,
            lease_millis: 3000,
        },
        map_version: 1,
        gear: GearStatus {
            mode: GearMode::Auto,
            gear: 3,
            servers: servers.into(),
            steps: GearSteps::Servers,
            shifting: false,
            dry_run: false,
            short_of_room: false,
            emergency: false,
            servers_awake: servers.into(),
            load: f64::from(servers) * 0.3,
            servers_needed: u32::from(servers).div_ceil(3),
            forecast: None,
        },
        servers: (1..=servers).map(server).collect(),
        groups: GroupCounts {
            total: u32::from(servers) * 64,
            in_sync: u32::from(servers) * 64,
            newest_epoch: Epoch(1),
            ..GroupCounts::default()
        },
        pools: Vec::new(),
        debt_bytes: 0,
        schedule: Schedule::default(),
        notes: Vec::new(),
        metadata: vec![MetadataMember { id: 1, votes: true, learns: false, leads: true, heard_millis: None }],
        power: None,
        energy: Some(EnergyStatus { modelled_joules: Joules(8.4e6), span_millis: 21_600_000 }),
        rack_switches: None,
        latency: None,
    }
}

fn server(id: u16) -> ServerStatus {
    ServerStatus {
        id: ServerId(id),
        rack: RackId((id - 1) % 3 + 1),
        pool: PoolId::REPLICATED,
        gear_group: GearGroup((id / 3 % 3) as u8),
        logger: false,
        seat: ebb_types::Seat::default(),
        copies: 64,
        address: format!("10.0.{}.{}:9100", id / 250, id % 250),
        state: ServerState::Awake,
        why: Why::Load { servers: 5, of: LoadOf::ThisHour },
        depth: None,
        incarnation: Incarnation(1),
        store: StoreId(id.into()),
        vitals: Some(Vitals { capacity_bytes: 4 << 40, used_bytes: 1 << 40, ..Vitals::default() }),
        heartbeat_age_millis: Some(400),
        lease_left_millis: Some(2600),
        primaries: 64,
        holder_of: 0,
        debt_since_unix_millis: None,
        modelled_watts: Some(Watts(68.2)),
        transition_modelled_watts: None,
        switch_trouble: None,
        power: PowerStatus { cycles: 20, cycles_saved: Some(3.4), ..PowerStatus::default() },
    }
}

/// All awake, and those that are needed awake, at the draw of [`put`].
fn power(status: &ClusterStatus) -> ClusterPower {
    let servers = status.servers.len() as f64;
    let needed = f64::from(status.gear.servers_needed);
    let now: Watts = status.servers.iter().filter_map(|s| s.modelled_watts).sum();
    // Through JSON as it is.
    let tenths = |watts: f64| Watts((watts * 10.0).round() / 10.0);
    ClusterPower {
        modelled_watts: tenths(now.0),
        always_on_modelled_watts: tenths(servers * 68.2),
        oracle_modelled_watts: tenths(needed * 68.2 + (servers - needed) * 5.4),
    }
}

/// Puts a server into a state, with the reason and the draw that go with it.
pub fn put(server: &mut ServerStatus, state: ServerState) {
    let (why, depth, watts) = match state {
        ServerState::Asleep => (Why::NotNeeded, Some(Depth::Standby), 5.4),
        ServerState::Draining => (Why::NotNeeded, None, 62.0),
        ServerState::Waking => (Why::Load { servers: 6, of: LoadOf::NextHour }, None, 97.7),
        ServerState::Failed | ServerState::Lost => (Why::Gone, None, 61.8),
        ServerState::Awake => (Why::Load { servers: 5, of: LoadOf::ThisHour }, None, 68.2),
    };
    let debt_bytes = if state == ServerState::Awake { 3 << 30 } else { 0 };
    (server.state, server.why, server.depth) = (state, why, depth);
    server.modelled_watts = Some(Watts(watts));
    server.primaries = if state == ServerState::Awake { 192 } else { 0 };
    if let Some(vitals) = &mut server.vitals {
        vitals.debt_bytes = debt_bytes * u64::from(server.id.0 % 5);
    }
}
