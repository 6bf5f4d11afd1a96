//! `ebb`: the only program. Each subcommand is a server of the cluster or a tool that talks to one.

mod cli;
mod cluster;
mod daemon;
mod error;
mod mirror;

use clap::error::ErrorKind;
use clap::{Arg, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use cli::admin::{GearCommand, StatusArgs};
use cli::dev::DevOptions;
use cli::key::KeyCommand;
use cli::pool::PoolCommand;
use cli::tool::{FileArgs, ToolArgs};
use cli::{admin, key, servers, simulate, trust};
use cluster::config::Config;
use daemon::{gateway, heap, meta, server};
use ebb_output::wrapped;
use ebb_types::{ServerId, numbers_in_words};
use error::NodeError;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::task::LocalSet;

/// Where `ebb dev` keeps its cluster and other commands look for one.
const DEV_DATA: &str = "data";

/// Commands that once stood beside `lab`.
const LAB_COMMANDS: [&str; 7] = ["replay", "bench", "cost", "trace", "meter", "eval", "agent"];

/// The commands as `ebb --help` lists them. The library knows one heading for all.
const HEADINGS: [(&str, &[&str]); 4] = [
    ("Run a cluster", &["dev", "server", "meta", "gateway", "page", "secret", "key"]),
    (
        "Look after a cluster",
        &["status", "notices", "gear", "power", "maintenance", "verify", "scrub", "lost", "force"],
    ),
    ("Pools, volumes, and mirrors of this machine", &["pool", "volume", "mirror"]),
    ("Measure and simulate", &["lab", "simulate"]),
];

/// Storage whose power draw follows its load.
#[derive(Parser)]
#[command(
    name = "ebb",
    version,
    propagate_version = true,
    after_help = "\
Examples:
  ebb dev                              a cluster of nine servers on this machine, S3 on 127.0.0.1:9000
  ebb status                           what it does and what it draws
  ebb gear set 1/3                     keep one third of the servers awake
  ebb lab replay week.srt --speed 2000 a week of real load in five minutes, verified and metered

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a check found a difference."
)]
struct Cli {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Subcommand)]
enum Sub {
    /// Run a whole cluster on this machine until Ctrl-C; its data is kept for the next start
    #[command(
        after_help = "Examples:\n  ebb dev --servers 12 --racks 4 --replicas 4 --data /var/tmp/ebb\n  ebb dev --servers 18 --pool archive=6+3"
    )]
    Dev(DevArgs),
    /// Run one chunk server of a configured cluster; or add, drain and remove servers
    #[command(
        args_conflicts_with_subcommands = true,
        subcommand_negates_reqs = true,
        after_help = "Examples:\n  ebb server --config examples/cluster.toml --id 3\n  ebb server add --id 10 --rack 4 --address 10.0.4.10:7710\n  ebb server drain 7 --wait && ebb server remove 7"
    )]
    Server {
        #[command(subcommand)]
        command: Option<servers::ServerCommand>,
        /// The cluster's configuration file
        #[arg(long, value_name = "FILE", required = true)]
        config: Option<PathBuf>,
        /// Id in the configuration
        #[arg(long, required = true)]
        id: Option<u16>,
    },
    /// Show what is left to move between servers, and what stands in its way
    Plan {
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// Run a metadata server of a configured cluster
    #[command(
        after_help = "Examples:\n  ebb meta --config examples/cluster.toml --create       the first start of a new cluster\n  ebb meta --config examples/cluster.toml                every other start\n  ebb meta --config examples/cluster.toml --id 2 --join  another member, or a replacement for a lost one\n  ebb meta --config examples/cluster.toml --id 1 --rescue\n                                                         the last one of three: what would be lost; with --accept-loss it continues alone"
    )]
    Meta {
        #[command(flatten)]
        config: ConfigArg,
        /// Id in the configuration, if it lists several
        #[arg(long)]
        id: Option<u64>,
        /// Create a new cluster: only for the very first start of its first metadata server
        #[arg(long)]
        create: bool,
        /// Join the cluster with an empty directory: the first start of every other metadata server, or a start after
        /// data loss
        #[arg(long, conflicts_with = "create")]
        join: bool,
        /// The last resort when the majority of the metadata servers is lost for good: say what going on with this one
        /// alone would lose
        #[arg(long, conflicts_with_all = ["create", "join"])]
        rescue: bool,
        /// With --rescue: accept the loss and go on with this one alone; the others then join it
        #[arg(long, requires = "rescue")]
        accept_loss: bool,
    },
    /// Run an S3 gateway of a configured cluster
    #[command(after_help = "Example: ebb gateway --config examples/cluster.toml")]
    Gateway {
        #[command(flatten)]
        config: ConfigArg,
        /// Which address to serve, if the configuration lists several
        #[arg(long)]
        address: Option<String>,
    },
    /// Create the secret files that the configuration names and that do not exist yet
    #[command(
        after_help = "Examples:\n  ebb secret --config cluster.toml                      all secrets of a new cluster, on one machine\n  ebb secret --config cluster.toml --admin ops.secret   an administrator's keys, for another machine\n\nEach machine needs only the file of its role (docs/security.md)."
    )]
    Secret {
        #[command(flatten)]
        config: ConfigArg,
        /// Write an administrator's keys to this new file instead
        #[arg(long, value_name = "FILE")]
        admin: Option<PathBuf>,
    },
    /// Create, list and remove the keys of S3 clients and their rights
    #[command(after_help = "Example: ebb key add --right read --bucket 'logs-*'")]
    Key {
        #[command(subcommand)]
        command: KeyCommand,
        #[command(flatten)]
        file: FileArgs,
    },
    /// Show the state of the cluster; wakes no server
    #[command(
        after_help = "Examples:\n  ebb status --json | jq .gear\n  ebb status --measured                   beside the modelled watts those that management controllers measure\n  ebb status --servers                    each server's lease, and what it keeps for sleeping ones"
    )]
    Status {
        #[command(flatten)]
        args: StatusArgs,
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// Show or add erasure-coded pools: their servers, what is owed to sleeping parity servers, and what may fail;
    /// showing wakes no server
    #[command(
        after_help = "Examples:\n  ebb pool list                           codes, and which server has which role\n  ebb pool status archive                 what each set owes, when its parity servers wake, what may fail\n  ebb pool status --json | jq '.[].sets[].survives'\n  ebb pool create cold                    after its [[pool]] and [[server]] sections are in every metadata server's file"
    )]
    Pool {
        #[command(subcommand)]
        command: PoolCommand,
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// Manage and serve block devices that the cluster stores, over NBD
    #[command(after_help = cli::volume::EXAMPLES)]
    Volume(cli::volume::VolumeArgs),
    /// Show or set the gear: how many servers are awake
    #[command(
        after_help = "Examples:\n  ebb gear set 12    keep 12 servers awake\n  ebb gear set 2/3   keep two of three gear groups awake\n  ebb gear auto      let load and forecast choose\n  ebb gear plan      show the schedule for the next day, and what it follows from; changes nothing\n  ebb gear plan --series hourly.csv\n                     the same by the configuration alone, after this load"
    )]
    Gear {
        #[command(subcommand)]
        command: GearCommand,
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// List what the metadata leader decided and found, with its reasons: shifts, failures, late wake-ups; the newest
    /// 1,000, times in UTC
    #[command(after_help = "Example: ebb notices --json | jq '.[].notice.shift | select(.)'")]
    Notices {
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// Serve a page that shows the cluster in a browser: what it does, why each server is awake, and buttons
    #[command(after_help = cli::page::EXAMPLES)]
    Page(cli::page::PageArgs),
    /// Take a server out of service before you stop its machine; waits until stopping it interrupts nothing
    #[command(
        after_help = "Example: ebb maintenance server-7         then stop, repair and start it\n         ebb maintenance server-7 --end   it takes part again"
    )]
    Maintenance {
        /// `7` or `server-7`
        #[arg(value_parser = trust::server_id)]
        server: ServerId,
        /// End the maintenance
        #[arg(long)]
        end: bool,
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// Declare a server permanently lost: its data is rebuilt on other servers of its gear group or set; refused, with
    /// the reason, while an erasure-coded set may need what it has
    #[command(
        after_help = "Example: ebb lost 4                 declare it lost, unless data may depend on it\n         ebb lost 4 --accept-loss   accept that loss"
    )]
    Lost {
        server: u16,
        /// Accept that rows of which the other servers have too few strips are lost
        #[arg(long)]
        accept_loss: bool,
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// Last resort: serve chunk groups that have no complete copy from the newest remaining data; without --accept-loss
    /// only reports what would be lost
    #[command(
        after_help = "Example: ebb force                 report what would be lost\n         ebb force --accept-loss   accept the loss"
    )]
    Force {
        /// Accept the loss and serve what remains
        #[arg(long)]
        accept_loss: bool,
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// Show and test how the servers are put to sleep and woken
    #[command(after_help = cli::power::EXAMPLES)]
    Power {
        #[command(subcommand)]
        command: cli::power::PowerCommand,
    },
    /// Read and compare every replica on awake servers now, at the configured rate, and repair damaged blocks
    Scrub {
        /// Only the replicas of this server
        #[arg(long)]
        server: Option<u16>,
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// Mirror two disks that save power at low speed, and serve them over NBD
    #[command(after_help = cli::mirror::EXAMPLES)]
    Mirror(cli::mirror::MirrorArgs),
    /// Compare the content of all replicas (awake servers only: shift to the top gear first), see what space is used
    /// for, or list the objects that lost bytes
    #[command(
        after_help = "Examples:\n  ebb gear set 3/3 --wait && ebb verify --read\n  ebb verify --space          is every chunk named, leased or garbage?\n  \
                      ebb verify --lost           which objects have bytes that no server has any more?\n\
                      Exit codes: 0 all replicas are equal, or nothing is left over or lost; 1 some could not be compared, listed or read; 3 some differ, or \
                      something is left over or lost"
    )]
    Verify {
        /// Read every block and check it, instead of comparing recorded checksums
        #[arg(long)]
        read: bool,
        /// Instead, list every chunk and ask the namespace what it is for
        #[arg(long, conflicts_with = "read")]
        space: bool,
        /// Delete the chunks that nothing names and nothing can name any more
        #[arg(long, requires = "space")]
        free: bool,
        /// Instead, read every object, and list the byte ranges that no server has any more
        #[arg(long, conflicts_with_all = ["read", "space"])]
        lost: bool,
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// The laboratory: replay, measure and compare any storage
    #[command(after_help = cli::lab::EXAMPLES)]
    Lab {
        #[command(subcommand)]
        command: cli::lab::LabCommand,
    },
    /// Try out a policy, a cluster or the protocol on a virtual clock
    Simulate(Box<simulate::SimulateArgs>),
}

#[derive(Args)]
struct ConfigArg {
    /// The cluster's configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl Sub {
    /// Whether it serves clients or other processes of a cluster until it is stopped.
    fn serves(&self) -> bool {
        use Sub::{Gateway, Meta, Mirror, Server, Volume};
        matches!(self, Server { command: None, .. } | Meta { .. } | Gateway { .. } | Mirror(_) | Volume(_))
    }

    /// Whether the command stores user data or results. The others only write files that the user names.
    fn keeps_data(&self) -> bool {
        match self {
            Sub::Dev(_)
            | Sub::Server { command: None, .. }
            | Sub::Meta { .. }
            | Sub::Gateway { .. }
            | Sub::Mirror(_) => true,
            Sub::Lab { command } => command.keeps_data(),
            _ => false,
        }
    }
}

#[derive(Args)]
struct DevArgs {
    #[command(flatten)]
    options: DevOptions,
    /// Directory of the cluster
    #[arg(long, value_name = "DIR", default_value = DEV_DATA, conflicts_with = "ephemeral")]
    data: PathBuf,
    /// Keep nothing: the data is removed when the cluster stops
    #[arg(long)]
    ephemeral: bool,
    /// Print one JSON object when the cluster is ready, and nothing else
    #[arg(long)]
    json: bool,
}

impl DevArgs {
    fn data(&self) -> Option<&Path> {
        (!self.ephemeral).then_some(self.data.as_path())
    }
}

/// A process that keeps or changes data ends with its first bug, and what supervises it starts it again: with one of
/// its tasks gone it would be half alive, and still believed by others. Only a power switch's driver may fail alone.
fn end_with_a_bug() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        if !std::thread::current().name().is_some_and(|name| name.starts_with(ebb_power::SWITCH_THREADS)) {
            std::process::abort();
        }
    }));
}

/// Exits quietly when the reader closes the pipe, as in `ebb status | head`. `println!` would panic.
fn end_quietly_when_unread() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let said = info.payload().downcast_ref::<String>();
        if said.is_some_and(|s| s.starts_with("failed printing to stdout") && s.contains("Broken pipe")) {
            std::process::exit(0);
        }
        usual(info);
    }));
}

/// Parses the command line. What is spelt another way now is refused with its new spelling.
fn parse() -> Cli {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into()).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    if let Some(new) = respelt(&words) {
        eprintln!("ebb: {new}");
        std::process::exit(2);
    }
    let mut command = with_headings(with_negative_numbers(Cli::command()));
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    cli.unwrap_or_else(|error| refuse(error.format(&mut command)))
}

/// Lists the commands under their headings.
fn with_headings(command: Command) -> Command {
    let line = |name: &&str| {
        let about = command.find_subcommand(name).and_then(Command::get_about);
        wrapped(&format!("  {name:13}"), &about.map(ToString::to_string).unwrap_or_default()) + "\n"
    };
    let under = |(heading, names): (&str, &[&str])| {
        format!("{heading}:\n{}\n", names.iter().map(line).collect::<String>())
    };
    let list: String = HEADINGS.into_iter().map(under).collect();
    let (above, below) = ("{about-with-newline}\n{usage-heading} {usage}", "Options:\n{options}{after-help}");
    command.help_template(format!("{above}\n\n{list}{below}"))
}

/// A number may be negative everywhere: where it must not be, its range says so, and not the grammar.
fn with_negative_numbers(command: Command) -> Command {
    let with = |arg: Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    command.mut_args(with).mut_subcommands(with_negative_numbers)
}

/// Says what is wrong with the command line, and exits.
fn refuse(error: clap::Error) -> ! {
    if error.kind() != ErrorKind::ValueValidation {
        error.exit()
    }
    let text = error.render();
    let text = if std::io::stderr().is_terminal() { text.ansi().to_string() } else { text.to_string() };
    eprint!("{}", numbers_in_words(&text));
    std::process::exit(2)
}

/// The new spelling of a command line of former releases.
fn respelt(args: &[&str]) -> Option<String> {
    let given = |option: &str| args.iter().any(|arg| arg.split('=').next() == Some(option));
    let has_file = |pair: &[&str]| pair[0] == "--json" && (pair[1] == "-" || pair[1].ends_with(".json"));
    match args {
        [word, ..] if LAB_COMMANDS.contains(word) => Some(format!("`ebb {word}` is now `ebb lab {word}`")),
        ["lab", "serve", ..] if given("--results") => {
            Some("`--results FILE` is now `--db FILE`, as of `ebb lab eval`".into())
        }
        ["lab", "replay" | "bench", ..]
            if args.windows(2).any(has_file) || args.iter().any(|arg| arg.starts_with("--json=")) =>
        {
            Some("`--json -` is now `--json`, and `--json FILE` is `--out FILE`".into())
        }
        _ => None,
    }
}

fn main() -> ExitCode {
    heap::keep_freed_memory();
    end_quietly_when_unread();
    let cli = parse();
    if cli.command.serves() {
        end_with_a_bug();
    }
    if cli.command.keeps_data() {
        // Files written by it and its children are readable by their owner only.
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    }
    let default = match &cli.command {
        // The S3 library logs every refused request as an error.
        Sub::Page(_) => "info,s3s=off",
        command if command.serves() => "info,s3s=off",
        Sub::Lab { command } if command.serves() => "info,s3s=off",
        // Who did what through the page.
        Sub::Dev(_) => "warn,ebb_web=info",
        _ => "warn",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("EBB_LOG").unwrap_or_else(|_| default.into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => LocalSet::new().block_on(&runtime, run(cli)),
        Err(source) => Err(NodeError::Io { action: "start", path: "the runtime".into(), source }),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ebb: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<ExitCode, NodeError> {
    match cli.command {
        Sub::Dev(args) => admin::dev(args.data(), &args.options, args.json).await,
        Sub::Server { command: Some(command), .. } => servers::run(command).await,
        Sub::Server { config, id, .. } => {
            // Without a subcommand both are required.
            let (config, id) = (config.unwrap_or_default(), id.unwrap_or_default());
            done(server::run(&Config::load(&config)?, id).await)
        }
        Sub::Plan { tool } => servers::plan(&tool).await,
        Sub::Meta { config, id, create, join, rescue, accept_loss } => {
            let start = match (create, join, rescue) {
                (true, ..) => meta::Start::Create,
                (_, true, _) => meta::Start::Join,
                (.., true) => meta::Start::Rescue { accept_loss },
                _ => meta::Start::Resume,
            };
            done(meta::run(&Config::load(&config.config)?, id, start).await)
        }
        Sub::Gateway { config, address } => {
            done(gateway::run(&Config::load(&config.config)?, address.as_deref()).await)
        }
        Sub::Secret { config, admin } => done(admin::secret(&config.config, admin.as_deref())),
        Sub::Key { command, file } => key::run(&file, command),
        Sub::Status { args, tool } => admin::show_status(&tool, args).await,
        Sub::Pool { command, tool } => admin::pool(&tool, command).await,
        Sub::Volume(args) => cli::volume::run(args).await,
        Sub::Gear { command, tool } => admin::gear(&tool, command).await,
        Sub::Notices { tool } => admin::notices(&tool).await,
        Sub::Page(args) => done(cli::page::run(args).await),
        Sub::Maintenance { server, end, tool } => trust::maintenance(&tool, server, end).await,
        Sub::Lost { server, accept_loss, tool } => admin::lost(&tool, server, accept_loss).await,
        Sub::Force { accept_loss, tool } => admin::force(&tool, accept_loss).await,
        Sub::Simulate(args) => simulate::run(*args).await,
        Sub::Power { command } => cli::power::run(command).await,
        Sub::Lab { command } => cli::lab::run(command).await,
        Sub::Mirror(args) => cli::mirror::run(args).await,
        Sub::Scrub { server, tool } => admin::scrub(&tool, server).await,
        Sub::Verify { space: true, free, tool, .. } => admin::space(&tool, free).await,
        Sub::Verify { lost: true, tool, .. } => admin::losses(&tool).await,
        Sub::Verify { read, tool, .. } => admin::verify(&tool, read).await,
    }
}

fn done(outcome: Result<(), NodeError>) -> Result<ExitCode, NodeError> {
    outcome.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs itself as a process of its own, which the bug ends.
    #[test]
    fn a_bug_in_one_task_ends_the_process_but_one_in_a_switch_does_not() {
        const PANICS: &str = "EBB_TEST_PANICS";
        let name = "tests::a_bug_in_one_task_ends_the_process_but_one_in_a_switch_does_not";
        let panics_in = |thread: &str| {
            let me = std::env::current_exe().expect("this program has a path");
            let mut child = std::process::Command::new(me);
            child.args(["--exact", name]).env(PANICS, thread).output().expect("it runs").status
        };
        match std::env::var(PANICS) {
            Ok(thread) => {
                end_with_a_bug();
                let task = std::thread::Builder::new().name(thread).spawn(|| panic!("a bug"));
                assert!(task.expect("there are threads").join().is_err());
            }
            Err(_) => {
                use std::os::unix::process::ExitStatusExt;
                assert_eq!(panics_in("task").signal(), Some(6));
                assert!(panics_in("switch-7").success());
            }
        }
    }

    #[test]
    fn every_command_is_under_one_heading() {
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut all: Vec<&str> = shown.map(Command::get_name).collect();
        let mut listed: Vec<&str> = HEADINGS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        all.sort();
        listed.sort();
        assert_eq!(all, listed);
        let help = with_headings(Cli::command()).render_help().to_string();
        assert!(help.contains("\nLook after a cluster:\n  status       Show the state"), "{help}");
        assert!(
            help.contains("Usage: ebb <COMMAND>\n\nRun a cluster:\n  dev") && help.contains("\nExamples:\n"),
            "{help}"
        );
    }

    #[test]
    fn negative_numbers_are_values_in_every_command() {
        fn walk(command: &Command, seen: &mut usize) {
            for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
                assert!(arg.is_allow_negative_numbers_set(), "{}: {}", command.get_name(), arg.get_id());
                *seen += 1;
            }
            command.get_subcommands().for_each(|command| walk(command, seen));
        }
        let mut seen = 0;
        walk(&with_negative_numbers(Cli::command()), &mut seen);
        assert!(seen > 200, "{seen}");
    }

    #[test]
    fn old_spellings_are_refused_with_the_new_ones() {
        for (line, new) in [
            ("replay week.srt", "`ebb lab replay`"),
            ("lab serve --results r.sqlite", "`--db FILE`"),
            ("lab serve --results=r.sqlite", "`--db FILE`"),
            ("lab replay week.srt --json -", "`--out FILE`"),
            ("lab replay --json report.json week.srt", "`--out FILE`"),
            ("lab bench s3 http://h:1 --json=report", "`--out FILE`"),
            ("lab bench server --id 3 --json x.json --config c.toml", "`--out FILE`"),
        ] {
            let said = respelt(&line.split(' ').collect::<Vec<_>>());
            assert!(said.as_ref().is_some_and(|said| said.contains(new)), "{line}: {said:?}");
        }
        for line in
            ["lab replay --json week.srt", "lab serve --db r", "status --json", "lab eval show --json"]
        {
            let args: Vec<&str> = line.split(' ').collect();
            assert_eq!(respelt(&args), None, "{line}");
            assert!(Cli::try_parse_from([&["ebb"], &args[..]].concat()).is_ok(), "{line}");
        }
    }
}
