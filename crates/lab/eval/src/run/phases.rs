//! The phases of a procedure: one after another on one target, each after what it needs before it.

use super::{Bench, Lane, PHASE_LOAD, Record, Watched, Work, fill, fill_power, metered, peak_of, with_first};
use crate::idle::{self, Idle};
use crate::matrix::Target;
use crate::order::{Intensity, Interval, Live, Machine, Place, Present, RunError};
use crate::procedure::{Activity, Phase};
use crate::store::StoreError;
use crate::workload::Workload;
use std::time::{Duration, SystemTime};

impl Lane<'_, '_> {
    /// The missing phases. One that fails ends the procedure: what comes after it would be measured in another state.
    pub(super) fn phases(
        &self,
        bench: &mut Bench,
        (target, place, machine): (&Target, &Place, &Machine),
        work: &Work,
        before: usize,
    ) -> Result<(), StoreError> {
        for (at, phase) in work.phases.iter().enumerate() {
            if self.lock().stop {
                return Ok(());
            }
            self.show(before + work.idle.len() + at, &format!("{} {}", target.name, phase.name));
            let mut record = Record {
                target: target.name.clone(),
                workload: phase.name.into(),
                load_percent: PHASE_LOAD,
                repetition: 1,
                filter: "closed-loop".into(),
                ..self.row(SystemTime::now(), machine)
            };
            let measured = match &phase.activity {
                Activity::Load(workload) => self.load(bench, target, place, phase, workload, &mut record),
                Activity::Idle => rest(bench, target, phase.length, &mut record).map(|()| Vec::new()),
            };
            record.error = measured.as_ref().err().map(ToString::to_string);
            self.add(&record, measured.as_deref().unwrap_or_default(), false)?;
            if let Err(error) = measured {
                return self.give_up(target, &error);
            }
        }
        Ok(())
    }

    fn load(
        &self,
        bench: &mut Bench,
        target: &Target,
        place: &Place,
        phase: &Phase,
        workload: &Workload,
        record: &mut Record,
    ) -> Result<Vec<Interval>, RunError> {
        let intensity = Intensity::Peak { depth: self.matrix.settings.depth };
        let order = |length: Duration| self.order(place, workload, intensity, length.as_secs_f64(), None);
        let show = |live: Live, meters| {
            self.watch(Watched { live, meters, load_percent: None, achieved_percent: None });
        };
        if !phase.warm_up.is_zero() {
            bench.generator.run(&order(phase.warm_up), &mut |live| show(live, Present::default()))?;
        }
        let (performance, draw) = metered(bench, &order(phase.length), &show)?;
        let Some(peak) = peak_of(&performance) else {
            let why = format!("none of {} requests succeeded", performance.failed);
            return Err(RunError::Failed(with_first(why, &performance.errors)));
        };
        fill(record, &performance, &draw, &peak, target);
        Ok(performance.series)
    }
}

/// Idle and ready: the target stays open. Without meters there is nothing to measure.
fn rest(bench: &mut Bench, target: &Target, length: Duration, record: &mut Record) -> Result<(), RunError> {
    record.length_seconds = Some(length.as_secs_f64());
    let Some(analyzer) = &mut bench.analyzer else { return Ok(()) };
    let as_it_is = Idle { disks: None, repetition: 1 };
    let draw = idle::measure(target, as_it_is, Duration::ZERO, length, analyzer.as_mut())?;
    fill_power(record, &draw, length.as_secs_f64(), target);
    Ok(())
}
