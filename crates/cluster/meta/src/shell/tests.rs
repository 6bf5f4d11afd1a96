use super::*;
use crate::state::tests::bootstrap;
use crate::{Command, Reply, Token, WakePath};
use ebb_types::{Incarnation, StoreMark};

/// It puts itself to sleep, and a packet wakes it by its second path.
const SLEEPER: ServerId = ServerId(0);
/// In another rack, with a switch.
const OTHER: ServerId = ServerId(1);
/// In the sleeper's rack.
const NEIGHBOUR: ServerId = ServerId(3);
const RUN: Incarnation = Incarnation(7);

fn at(millis: u64) -> Moment {
    Moment(millis * 1_000_000)
}

fn thrown(server: ServerId, action: SwitchAction) -> Outcome {
    Outcome::Switch { server, action }
}

/// A shell, and what its member knows.
struct Around {
    shell: Shell,
    state: State,
    switches: Switches,
    leads: bool,
}

impl Around {
    fn new() -> Around {
        let mut state = State::default();
        assert_eq!(state.apply(&Command::Init(bootstrap())), Reply::Done);
        let wakes = |name, magic| WakePath { puts_to_sleep: false, magic, ..WakePath::switch(name, false) };
        let switches = Switches::from([
            (SLEEPER, vec![wakes("redfish", false), wakes("wol", true)]),
            (OTHER, vec![WakePath::switch("process", true)]),
        ]);
        Around { shell: Shell::default(), state, switches, leads: true }
    }

    fn set(&mut self, server: ServerId, to: ServerState) {
        let command = Command::set_server(&self.state, server, to, RUN, StoreMark::default());
        assert_eq!(self.state.apply(&command), Reply::Done);
    }

    fn on(&mut self, millis: u64, outcomes: Vec<Outcome>) -> Vec<Outcome> {
        let view = View { state: &self.state, switches: &self.switches, leads: self.leads };
        let mut out = Vec::new();
        self.shell.on(at(millis), outcomes, &view, &mut out);
        out
    }

    fn throw(&mut self, millis: u64, server: ServerId, action: SwitchAction) -> Vec<Outcome> {
        self.on(millis, vec![thrown(server, action)])
    }

    /// A heartbeat; on the server's clock it is as late.
    fn beat(&mut self, millis: u64, server: ServerId) -> Vec<Outcome> {
        self.shell.heard(server, at(millis));
        self.on(millis, Vec::new())
    }

    /// To the sleeper, by what is known now and a heartbeat of then.
    fn order(&self, heard: u64) -> Outcome {
        let (map_version, heard) = (self.state.version(), at(heard));
        let order = SleepOrder { incarnation: RUN, map_version, depth: Depth::Off, heard };
        Outcome::Order { to: SLEEPER, order }
    }
}

#[test]
fn who_watches_is_pushed_each_new_map_once_until_it_takes_none() {
    let mut around = Around::new();
    let params = around.state.params().unwrap().clone();
    let answer = |connection| {
        let reply = MetaReply::Watch { params: params.clone(), map: around.state.delta(0) };
        Outcome::Reply { token: Token { connection, id: 9 }, reply }
    };
    let answers = [1, 2, 1].map(answer).to_vec();
    assert_eq!(around.on(1, answers.clone()), answers, "they have the newest map");
    let first = around.state.version();
    let maps = |outcomes: Vec<Outcome>| {
        let map = |outcome: Outcome| match outcome {
            Outcome::Map { to, delta } => (to, delta.from, delta.to),
            other => panic!("{other:?}"),
        };
        outcomes.into_iter().map(map).collect::<Vec<(u64, u64, u64)>>()
    };
    around.set(OTHER, ServerState::Awake);
    around.set(SLEEPER, ServerState::Awake);
    assert_eq!(maps(around.on(2, Vec::new())), [(1, first, first + 2), (2, first, first + 2)]);
    assert_eq!(maps(around.on(3, Vec::new())), []);
    around.shell.unwatch(2);
    around.set(OTHER, ServerState::Failed);
    assert_eq!(maps(around.on(4, Vec::new())), [(1, first + 2, first + 3)]);
}

#[test]
fn an_order_to_sleep_is_given_again_with_every_heartbeat_until_the_server_is_to_wake() {
    let mut around = Around::new();
    let sleep = SwitchAction::Sleep(Depth::Off);
    assert_eq!(around.throw(1, SLEEPER, sleep), [thrown(SLEEPER, sleep)], "it has not been heard of");
    assert_eq!(around.beat(2, SLEEPER), [], "it is not asleep on record");
    around.set(SLEEPER, ServerState::Asleep);
    assert_eq!(around.beat(3, SLEEPER), [around.order(3)]);
    assert_eq!(around.beat(4, SLEEPER), [around.order(4)]);
    around.leads = false;
    assert_eq!(around.beat(5, SLEEPER), []);
    around.leads = true;
    assert_eq!(around.throw(6, SLEEPER, sleep), [around.order(5), thrown(SLEEPER, sleep)]);
    let wake = SwitchAction::Wake { path: 0 };
    assert_eq!(around.throw(7, SLEEPER, wake), [thrown(SLEEPER, wake)]);
    assert_eq!(around.beat(8, SLEEPER), []);
}

#[test]
fn a_server_that_a_switch_puts_to_sleep_gets_no_order_and_one_that_refused_no_other() {
    let mut around = Around::new();
    let sleep = SwitchAction::Sleep(Depth::Off);
    for server in [SLEEPER, OTHER] {
        assert_eq!(around.beat(1, server), []);
        around.set(server, ServerState::Asleep);
    }
    assert_eq!(around.throw(2, OTHER, sleep), [thrown(OTHER, sleep)]);
    assert_eq!(around.beat(3, OTHER), []);
    assert_eq!(around.throw(4, SLEEPER, sleep), [around.order(1), thrown(SLEEPER, sleep)]);
    around.shell.refused(SLEEPER);
    assert_eq!(around.beat(5, SLEEPER), []);
}

#[test]
fn neighbours_send_the_packet_that_wakes_a_server_every_second_until_it_is_heard_of() {
    for heard in [None, Some(3000)] {
        let mut around = Around::new();
        [NEIGHBOUR, OTHER].into_iter().for_each(|server| around.set(server, ServerState::Awake));
        let wake = |path| SwitchAction::Wake { path };
        assert_eq!(around.throw(1, SLEEPER, wake(0)), [thrown(SLEEPER, wake(0))], "by no packet");
        let packet = Outcome::Magic { server: SLEEPER, path: 1, by: vec![NEIGHBOUR] };
        let both = [thrown(SLEEPER, wake(1)), packet.clone()];
        assert_eq!(around.throw(500, SLEEPER, wake(1)), both);
        assert_eq!(around.shell.next_wake(), Some(at(1500)));
        let mut sent = vec![500];
        for millis in (1000..20_000).step_by(500) {
            let hears = heard == Some(millis);
            let done = if hears { around.beat(millis, SLEEPER) } else { around.on(millis, Vec::new()) };
            assert!(done.iter().all(|outcome| *outcome == packet), "{done:?}");
            sent.extend(done.iter().map(|_| millis));
        }
        let all = [500, 1500, 2500, 3500, 4500, 5500, 6500, 7500];
        assert_eq!(sent, if heard.is_some() { &all[..3] } else { &all[..] });
        assert_eq!(around.shell.next_wake(), None);
    }
}
