//! Results that depend on the layout alone: Figure 4 and Table 1.

use super::findings::{Experiment, PaperError, Table};
use super::testbed::REPLICAS;
use ebb_gear::{Layout, Place, Scheme, Server, layout, power_down, power_down_count, rebuild_parallelism};
use ebb_output::{Axis, Chart, Mark, Series};
use ebb_sim::request::{Setup, rebuild};
use ebb_types::{GearGroup, RackId, ServerId};

/// The search for the largest set of servers that can sleep (a set cover) is exact up to this size.
const EXACT: u16 = 15;
/// Racks of the testbed.
const RACKS: u16 = 3;
/// Chunk groups per server: enough that any three servers share one, as if each chunk were placed separately.
const GROUPS_PER_SERVER: u32 = 512;

fn lay_out(servers: u16, racks: u16, groups: u32, seed: u64, scheme: Scheme) -> Result<Layout, PaperError> {
    let server = |n: u16| Server { id: ServerId(n), rack: RackId(n % racks) };
    let servers: Vec<Server> = (0..servers).map(server).collect();
    Ok(layout(&servers, REPLICAS, groups, seed, scheme)?)
}

/// Found by search over the chunk groups, even if the construction implies it.
fn asleep(layout: &Layout, gear: u8) -> f64 {
    let searched = Layout { scheme: Scheme::NaiveRandom, ..layout.clone() };
    power_down_count(&searched, gear) as f64
}

/// The mean over all servers that may be lost.
fn parallelism(layout: &Layout) -> f64 {
    let all: usize = layout.servers.keys().map(|lost| rebuild_parallelism(layout, *lost)).sum();
    all as f64 / layout.servers.len() as f64
}

/// Name, layout, and the paper's formulas for the servers asleep in a gear and for the write parallelism of a rebuild.
type Kind = (&'static str, Scheme, fn(f64, f64) -> f64, fn(f64) -> f64);

const R: f64 = REPLICAS as f64;
const KINDS: [Kind; 3] = [
    ("naive random", Scheme::NaiveRandom, |_, g| R - g, |n| n),
    ("naive grouping", Scheme::NaiveGrouped, |n, g| n * (R - g) / R, |_| 1.0),
    ("power-aware grouping", Scheme::Rotated, |n, g| n * (R - g) / R, |n| n / R),
];

pub(super) fn power_down_and_rebuild(seed: u64) -> Result<Experiment, PaperError> {
    let mut found = Experiment::new(
        "Table 1",
        "Servers that can sleep, and servers that rebuild a lost one",
        format!(
            "Ebb's layouts of {EXACT} servers, {REPLICAS} copies, {GROUPS_PER_SERVER} chunk groups per server, every server in a \
             rack of its own, so that racks do not bind, as in the paper's table. Servers that can sleep are found by an exact search over the chunk groups, also for power-aware grouping, \
             where they follow from the construction. The paper's rebuild parallelism counts the lost server too; here it \
             is the number of other servers that write. The last rows lose a server of a modelled cluster without data, and count the \
             servers that its metadata service chooses (the rows before: what the layout allows), with a rack for each server and in \
             the testbed's {RACKS} racks. There, rotated, a rebuild uses the whole gear group at first, though two copies of a group may then \
             share a rack for a while: they part afterwards (rule R13)."
        ),
    );
    let mut sleepers = Chart::new(
        "Servers that can sleep in gear 1, by search",
        Axis::new("servers"),
        Axis::new("servers asleep"),
    );
    let mut writers = Chart::new(
        "Servers that write when one is rebuilt",
        Axis::new("servers"),
        Axis::new("servers that write"),
    );
    let r = usize::from(REPLICAS);
    let sizes = (2 * u16::from(REPLICAS)..=EXACT).step_by(r);
    for (name, scheme, paper_asleep, paper_rebuild) in KINDS {
        let (mut down, mut write) = (Vec::new(), Vec::new());
        for n in sizes.clone() {
            let layout = lay_out(n, n, GROUPS_PER_SERVER * u32::from(n), seed, scheme)?;
            down.push((f64::from(n), asleep(&layout, 1)));
            write.push((f64::from(n), parallelism(&layout)));
            if n == EXACT {
                for gear in 1..REPLICAS {
                    let paper = paper_asleep(f64::from(n), f64::from(gear));
                    let what = format!("{name}: servers asleep in gear {gear}");
                    found.row(what, "", Some(paper), Some(asleep(&layout, gear)));
                }
                let paper = paper_rebuild(f64::from(n));
                let what = format!("{name}: servers that rebuild one");
                found.row(what, "", Some(paper), Some(parallelism(&layout)));
            }
        }
        sleepers = sleepers.with(Series::new(name, Mark::Line, down));
        writers = writers.with(Series::new(name, Mark::Line, write));
    }
    for (racks, named) in [(EXACT, "a rack each"), (RACKS, "3 racks")] {
        for (scheme, kind) in [(Scheme::Rotated, "rotated"), (Scheme::RackAligned, "rack-aligned")] {
            let paper = Some(f64::from(EXACT) / R);
            let layout = lay_out(EXACT, racks, GROUPS_PER_SERVER * u32::from(EXACT), seed, scheme)?;
            let what = format!("{kind}, {named}: servers that rebuild one, by the layout");
            found.row(what, "", paper, Some(parallelism(&layout)));
            let setup =
                Setup { servers: EXACT, racks, replicas: REPLICAS, layout: scheme, seed, ..Setup::default() };
            let what = format!("{kind}, {named}: servers that rebuild one, by the controller");
            found.row(what, "", paper, Some(rebuild(&setup, 0)?.write_servers as f64));
        }
    }
    found.charts = vec![sleepers, writers];
    Ok(found)
}

/// Figure 4's example.
const FIGURE_4: (u16, u8) = (4, 2);

pub(super) fn sleepers_of_the_example() -> Experiment {
    let mut found = Experiment::new(
        "Figure 4",
        "Six chunks on four servers, two copies each",
        "The paper's example, in gear 1. Naive: every two servers share a chunk, so no two can sleep. Replica groups: servers 1 and 2 \
         hold the same three chunks, 3 and 4 the others. Gear groups: one copy on 1 or 2, the other on 3 or 4, so that a lost server's \
         chunks are on several others. Servers that can sleep are found by an exact search over the chunks.",
    );
    let kinds: [(&str, f64, [[u16; 2]; 6]); 3] = [
        ("naive layout", 1.0, [[1, 2], [1, 3], [1, 4], [2, 3], [2, 4], [3, 4]]),
        ("replica groups", 2.0, [[1, 2], [1, 2], [1, 2], [3, 4], [3, 4], [3, 4]]),
        ("gear groups", 2.0, [[1, 3], [1, 4], [2, 3], [2, 4], [1, 3], [2, 4]]),
    ];
    let header = ["layout", "chunks on 1", "on 2", "on 3", "on 4", "asleep"];
    let mut table = Table::new("Chunks by server", header, Vec::new());
    let (servers, replicas) = FIGURE_4;
    for (name, paper, chunks) in kinds {
        let place = |n: u16| Place { rack: RackId(n), gear_group: GearGroup(u8::from(n > servers / 2)) };
        let groups: Vec<Vec<ServerId>> = chunks.iter().map(|on| on.map(ServerId).to_vec()).collect();
        let layout = Layout {
            scheme: Scheme::NaiveRandom,
            replicas,
            servers: (1..=servers).map(|n| (ServerId(n), place(n))).collect(),
            primaries: groups.iter().map(|on| on[0]).collect(),
            groups,
        };
        let off = power_down(&layout, 1);
        let names =
            |ids: &mut dyn Iterator<Item = usize>| ids.map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let mut cells = vec![name.to_owned()];
        for server in layout.servers.keys() {
            let on = layout.groups.iter().enumerate().filter(|(_, on)| on.contains(server));
            cells.push(names(&mut on.map(|(n, _)| n + 1)));
        }
        cells.push(names(&mut off.iter().map(|id| usize::from(id.0))));
        table.rows.push(cells);
        found.row(format!("{name}: servers asleep"), "", Some(paper), Some(off.len() as f64));
    }
    found.tables.push(table);
    found
}
