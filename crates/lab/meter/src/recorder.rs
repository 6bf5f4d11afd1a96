//! The recorder: one sampling thread per meter, so that a slow one (a management controller takes a second to answer)
//! delays no other, all on one clock.
//!
//! A sample is stamped with the midpoint of its reading.

use super::recording::{MeterRecord, Recording, Sample, Track, Window};
use super::{Clock, Meter, MeterError, OpenMeter, now};
use ebb_types::Moment;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Samples meters until it is stopped or dropped.
pub struct Recorder {
    clock: Clock,
    samplers: Vec<Sampler>,
}

struct Sampler {
    record: Arc<Mutex<MeterRecord>>,
    /// Requests a reading now; the inner sender is dropped when it is filed. Dropping this ends the thread.
    ask: Option<Sender<Sender<()>>>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts sampling, and returns once every meter has been read.
    pub fn start(meters: Vec<OpenMeter>) -> Result<Recorder, MeterError> {
        let mut samplers = Vec::new();
        for open in meters {
            samplers.push(Sampler::start(open)?);
        }
        let recorder = Recorder { clock: Clock::read(), samplers };
        recorder.sample();
        Ok(recorder)
    }

    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Reads every meter now, and returns the moment at which all readings are done. Call it right before and right
    /// after a run: then samples cover the whole run, whatever the intervals.
    pub fn sample(&self) -> Moment {
        let (done, wait) = channel();
        for sampler in &self.samplers {
            if let Some(ask) = &sampler.ask {
                // A thread that has ended left its failure in the record.
                let _ = ask.send(done.clone());
            }
        }
        drop(done);
        // Nothing is ever sent: this returns when the last thread has dropped its sender.
        let _ = wait.recv();
        now()
    }

    /// Every channel over a window, from the samples so far.
    pub fn window(&self, from: Moment, to: Moment) -> Window {
        let figures = self.samplers.iter().flat_map(|s| lock(&s.record).figures(from, to)).collect();
        Window { from, to, figures }
    }

    /// A copy of all samples so far.
    pub fn recording(&self) -> Recording {
        Recording {
            clock: self.clock,
            meters: self.samplers.iter().map(|s| lock(&s.record).clone()).collect(),
        }
    }

    /// Drops samples that no window from `moment` on needs: a long series of runs uses only the present one.
    pub fn forget_before(&self, moment: Moment) {
        for sampler in &self.samplers {
            for track in &mut lock(&sampler.record).tracks {
                track.forget_before(moment);
            }
        }
    }

    /// Reads every meter one last time, and stops.
    pub fn stop(mut self) -> Recording {
        self.sample();
        self.end();
        self.recording()
    }

    fn end(&mut self) {
        for sampler in &mut self.samplers {
            sampler.ask = None;
        }
        for sampler in &mut self.samplers {
            if let Some(thread) = sampler.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

impl Sampler {
    fn start(open: OpenMeter) -> Result<Sampler, MeterError> {
        let OpenMeter { name, interval, channels, meter } = open;
        let track = |channel| Track { channel, interval, samples: Vec::new() };
        let record = Arc::new(Mutex::new(MeterRecord {
            name: name.clone(),
            tracks: channels.into_iter().map(track).collect(),
            ..MeterRecord::default()
        }));
        let (ask, asked) = channel();
        let shared = record.clone();
        let thread = std::thread::Builder::new()
            .name("meter".into())
            .spawn(move || run(meter, interval, &shared, &asked))
            .map_err(|source| MeterError::Thread { meter: name, source })?;
        Ok(Sampler { record, ask: Some(ask), thread: Some(thread) })
    }
}

fn lock(record: &Mutex<MeterRecord>) -> MutexGuard<'_, MeterRecord> {
    record.lock().expect("no one panics while a reading is filed")
}

fn run(
    mut meter: Box<dyn Meter>,
    interval: Duration,
    record: &Mutex<MeterRecord>,
    asked: &Receiver<Sender<()>>,
) {
    // The recorder requests the first reading itself.
    let mut next = Instant::now() + interval;
    loop {
        let asker = match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(asker) => Some(asker),
            Err(RecvTimeoutError::Timeout) => {
                // A reading that takes longer than the interval is followed by one immediate reading, not by a burst.
                next = (next + interval).max(Instant::now());
                None
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let before = now();
        let mut absent = None;
        let readings = meter.read(&mut absent);
        file(&mut lock(record), [before, now()], readings, absent);
        drop(asker);
    }
}

fn file(
    record: &mut MeterRecord,
    [before, after]: [Moment; 2],
    readings: Result<Vec<Option<f64>>, MeterError>,
    absent: Option<String>,
) {
    let took = after.since(before);
    let at = before + took / 2;
    record.reads += 1;
    record.slowest_read = record.slowest_read.max(took);
    // A non-finite number is not a reading.
    let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
    let values: Vec<Option<f64>> = match readings {
        Ok(readings) => {
            let values: Vec<Option<f64>> = readings.into_iter().map(finite).collect();
            record.why_absent = absent.or_else(|| unexplained(record, &values)).or(record.why_absent.take());
            values
        }
        Err(error) => {
            record.failed_reads += 1;
            record.last_failure = Some(error.to_string());
            vec![None; record.tracks.len()]
        }
    };
    for (track, value) in record.tracks.iter_mut().zip(values) {
        track.samples.push(Sample { at, value });
    }
}

/// The channels without a value, for which the driver knows no reason.
fn unexplained(record: &MeterRecord, values: &[Option<f64>]) -> Option<String> {
    let absent = record.tracks.iter().zip(values).filter(|(_, value)| value.is_none());
    let names: Vec<&str> = absent.map(|(track, _)| track.channel.name.as_str()).collect();
    (!names.is_empty()).then(|| format!("{} gave none", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Channel, Quantity, Source};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::sync_channel;

    /// Returns the values that the test sets.
    struct Fake {
        next: Box<dyn FnMut() -> Result<Vec<Option<f64>>, MeterError> + Send>,
    }

    impl Meter for Fake {
        fn read(&mut self, _: &mut Option<String>) -> Result<Vec<Option<f64>>, MeterError> {
            (self.next)()
        }
    }

    fn open(
        name: &str,
        interval: Duration,
        next: impl FnMut() -> Result<Vec<Option<f64>>, MeterError> + Send + 'static,
    ) -> OpenMeter {
        let channel = Channel {
            name: "c".into(),
            quantity: Quantity::Power,
            source: Source::Measured,
            part_of: None,
            sees: String::new(),
        };
        let meter = Box::new(Fake { next: Box::new(next) });
        OpenMeter { name: name.into(), interval, channels: vec![channel], meter }
    }

    const NEVER: Duration = Duration::from_secs(3600);

    #[test]
    fn readings_asked_for_cover_a_run_from_end_to_end() {
        let recorder = Recorder::start(vec![
            open("steady", NEVER, || Ok(vec![Some(20.0)])),
            open("other", NEVER, || Ok(vec![Some(5.0)])),
        ])
        .unwrap();
        let from = recorder.sample();
        let to = now();
        recorder.sample();
        let window = recorder.window(from, to);
        for (meter, watts) in [("steady", 20.0), ("other", 5.0)] {
            let energy = window.energy(meter).unwrap();
            assert!(
                (energy.power.0 - watts).abs() < 1e-9 && (energy.coverage - 1.0).abs() < 1e-9,
                "{energy:?}"
            );
        }
        let recording = recorder.stop();
        assert_eq!(recording.meters[0].tracks[0].samples.len(), 4);
        assert!(recording.meters[0].tracks[0].samples.is_sorted_by_key(|sample| sample.at));
    }

    #[test]
    fn a_failed_reading_is_absent_and_reported() {
        let mut count = 0;
        let recorder = Recorder::start(vec![open("flaky", NEVER, move || {
            count += 1;
            match count {
                1 => Ok(vec![Some(1.0)]),
                2 => Err(MeterError::Command { command: "x".into(), why: "no such plug".into() }),
                3 => Ok(vec![Some(f64::NAN)]),
                _ => Ok(vec![None]),
            }
        })])
        .unwrap();
        recorder.sample();
        recorder.sample();
        let record = &recorder.stop().meters[0];
        let values: Vec<_> = record.tracks[0].samples.iter().map(|s| s.value).collect();
        assert_eq!(values, [Some(1.0), None, None, None]);
        assert_eq!((record.reads, record.failed_reads), (4, 1));
        assert!(record.last_failure.as_deref().unwrap().contains("no such plug"));
        assert_eq!(record.why_absent.as_deref(), Some("c gave none"));
    }

    #[test]
    fn a_slow_meter_does_not_hold_up_a_quick_one() {
        let (go_on, wait) = sync_channel::<()>(0);
        let slow = open("slow", NEVER, move || {
            // The first reading is quick; later ones block until the test releases them.
            let _ = wait.recv();
            Ok(vec![Some(1.0)])
        });
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        let quick = open("quick", Duration::from_millis(1), move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(vec![Some(1.0)])
        });
        std::thread::scope(|scope| {
            let started = scope.spawn(|| Recorder::start(vec![slow, quick]).unwrap());
            // The quick meter is sampled while the slow one has not answered once.
            while count.load(Ordering::SeqCst) < 20 {
                std::thread::yield_now();
            }
            drop(go_on);
            let recording = started.join().unwrap().stop();
            assert!(recording.meters[1].tracks[0].samples.len() >= 20);
            assert_eq!(recording.meters[0].tracks[0].samples.len(), 2);
        });
    }

    #[test]
    fn what_is_forgotten_is_gone() {
        let recorder = Recorder::start(vec![open("m", NEVER, || Ok(vec![Some(1.0)]))]).unwrap();
        recorder.sample();
        let here = now();
        recorder.sample();
        let window = |recorder: &Recorder| recorder.window(here, now()).figures[0].samples;
        let before = window(&recorder);
        recorder.forget_before(here);
        // The reading before `here` stays: coverage starts from it.
        assert_eq!(recorder.recording().meters[0].tracks[0].samples.len(), 2);
        assert_eq!((before, window(&recorder)), (1, 1));
    }
}
