use super::*;
use crate::Hertz;

fn workload(name: &str, more: &str) -> Workload {
    let text = format!("name = {name:?}\nabout = \"writes\"\n{more}");
    Workload::parse(Path::new("test.toml"), &text).unwrap()
}

fn options(directory: &Path) -> SuiteOptions {
    SuiteOptions {
        cost: CostOptions { cores: vec![1], frequency: Some(Hertz(1e9)), ..CostOptions::default() },
        data: Dataset { scale: 3, seed: 7 },
        directory: directory.to_owned(),
        guests: None,
    }
}

#[test]
fn cores_are_doubled_up_to_all() {
    assert_eq!(doubled(1), [1]);
    assert_eq!(doubled(2), [1, 2]);
    assert_eq!(doubled(6), [1, 2, 4, 6]);
    assert_eq!(doubled(16), [1, 2, 4, 8, 16]);
}

#[test]
fn a_suite_measures_skips_and_reports_what_failed() {
    let dir = tempfile::tempdir().unwrap();
    let witness = dir.path().join("witness");
    let scripts = format!(
        r#"
setup = '''
[ "$SCALE $SEED" = '3 7' ]
head -c 4000000 /dev/zero >data
'''
command = '''
wc -c <data
head -c 8000000 /dev/zero >out
'''
cleanup = '''
echo cleaned >>{}
'''
"#,
        witness.display()
    );
    let workloads = [
        workload("writes", &scripts),
        workload("no-tool", "tools = [\"no-such-program-anywhere\"]\ncommand = \"true\""),
        workload("no-setup", "setup = \"echo one; echo why; exit 3\"\ncommand = \"true\""),
        workload("no-command", &scripts.replace("wc -c <data", "echo it broke; exit 4")),
    ];
    let mut told = Vec::new();
    let report =
        run_suite(&options(dir.path()), &workloads, &mut |what| told.push(what.to_string())).unwrap();
    assert!(told.iter().any(|line| line == "writes (1 of 4): setup"), "{told:?}");
    let outcomes: Vec<&Outcome> = report.workloads.iter().map(|result| &result.outcome).collect();
    let Outcome::Measured(measured) = outcomes[0] else { panic!("{:?}", outcomes[0]) };
    assert!(measured.points[0].runs[0].machine.ios >= 8_000_000 / 512, "{measured:?}");
    let why = |outcome: &Outcome| match outcome {
        Outcome::Skipped(why) => format!("skipped: {why}"),
        Outcome::Failed(why) => why.clone(),
        Outcome::Measured(_) => "measured".into(),
    };
    assert_eq!(why(outcomes[1]), "skipped: no-such-program-anywhere not installed");
    assert_eq!(why(outcomes[2]), "setup: it ended with exit status: 3: one; why");
    assert_eq!(why(outcomes[3]), "command: it ended with exit status: 4: it broke");
    assert_eq!((report.failed(), report.figures.rows.len()), (2, 1), "what was skipped did not fail");
    assert_eq!(fs::read_to_string(&witness).unwrap(), "cleaned\ncleaned\n", "also after a failure");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the data are gone");

    let (text, page) = (report.to_string(), report.page());
    for part in
        ["no-tool: skipped: no-such-program-anywhere", "no-command: failed", "another machine", "Figure 5"]
    {
        assert!(page.contains(part), "{part} is not on the page");
    }
    assert!(text.contains("no-setup: failed: setup") && text.contains("compare the shape"), "{text}");
    assert!(!page.contains("no data"), "nothing is drawn where nothing was measured");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["workloads"][1]["outcome"]["skipped"], "no-such-program-anywhere not installed");
    assert_eq!(json["workloads"][0]["outcome"]["measured"]["label"], "writes");
}

#[test]
fn a_command_without_end_is_measured_for_its_window() {
    let dir = tempfile::tempdir().unwrap();
    let endless = "window_seconds = 0.5\ncommand = \"while :; do head -c 100000 /dev/zero >out; done\"";
    let report = run_suite(&options(dir.path()), &[workload("endless", endless)], &mut |_| {}).unwrap();
    let Outcome::Measured(measured) = &report.workloads[0].outcome else { panic!("{:?}", report.workloads) };
    assert_eq!(measured.window_seconds, Some(0.5));
    assert!(measured.points[0].runs[0].machine.ios > 0);
}

#[test]
fn a_directory_that_is_not_there_is_refused() {
    let refused = run_suite(&options(Path::new("/no/such/place")), &[], &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("/no/such/place") && refused.contains("--dir"), "{refused}");
}
