//! `bench diagnosis [--corpus DIR]...`: how many failures of labelled logs are named rightly, beside what simpler means reach on the same
//! logs. A corpus is a folder of bundles, one for each category, or of logs with a labels.csv: `file,category` and any further
//! columns; docs/reference/diagnosis.md has more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gangline_diagnosis::{Category, Evidence, Log, Rules};

use crate::bundle;

/// What is to be reached on logs that rules weren't made with (issue 6).
const RIGHT_LEAST: f64 = 80.0;
const WRONG_MOST: f64 = 3.0;
/// Bytes of the log whose time is taken.
const TIMED_BYTES: usize = 10 << 20;

/// A log whose cause is known.
struct Case {
    name: String,
    category: Category,
    text: Vec<u8>,
}

/// Names a cause, or says that it can't.
type Classifier<'a> = &'a dyn Fn(&Case) -> Category;

/// Measures and prints; whether every corpus met the bars.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let rules = Rules::new().context("make the rules")?;
    println!("{} rules; shares in % of the logs (measured)", rules.len());
    let mut is_met = true;
    for folder in corpora(options)? {
        is_met &= judge(&rules, &folder)?;
    }
    let time = timed(&rules);
    println!("\n10 MiB of training log with a failure at its end: {:.0} ms (measured)", time.as_secs_f64() * 1e3);
    Ok(is_met)
}

fn corpora(options: &[String]) -> Result<Vec<PathBuf>> {
    let ours = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/diagnosis/tests").join(name);
    let mut named = Vec::new();
    let mut options = options.iter();
    while let Some(option) = options.next() {
        anyhow::ensure!(option == "--corpus", "bench diagnosis takes --corpus DIR, not {option}");
        named.push(PathBuf::from(options.next().context("--corpus needs a folder")?));
    }
    Ok(if named.is_empty() { vec![ours("corpus"), ours("held_out")] } else { named })
}

fn judge(rules: &Rules, folder: &Path) -> Result<bool> {
    let cases = cases(folder)?;
    println!("\n{} ({} logs)", folder.display(), cases.len());
    println!("  {:<24} {:>7} {:>7} {:>8}", "", "right", "wrong", "unknown");
    let classify = |case: &Case| verdict(rules, case).category;
    let (right, wrong) = score("gangline", &cases, &classify);
    score("exit code only", &cases, &by_exit_code);
    score("grep of key words", &cases, &by_words);
    score("last line of traceback", &cases, &by_traceback);
    confusion(&cases, &classify);
    for case in &cases {
        let verdict = verdict(rules, case);
        if verdict.category != case.category {
            let line = verdict.evidence.first().map_or("", |quote| quote.text.as_str());
            let line: String = line.chars().take(110).collect();
            println!(
                "  {} is {}, not {} ({:.2}): {line}",
                case.name, case.category, verdict.category, verdict.confidence
            );
        }
    }
    let is_met = right >= RIGHT_LEAST && wrong <= WRONG_MOST;
    let word = if is_met { "met" } else { "NOT met" };
    println!("  bars: right at least {RIGHT_LEAST}, confidently wrong at most {WRONG_MOST}: {word}");
    Ok(is_met)
}

fn cases(folder: &Path) -> Result<Vec<Case>> {
    let labels = folder.join("labels.csv");
    let cases = if labels.is_file() { labelled(folder, &labels)? } else { bundled(folder)? };
    anyhow::ensure!(!cases.is_empty(), "{} has no logs", folder.display());
    Ok(cases)
}

/// The logs of bundles, in the order of their names.
fn bundled(folder: &Path) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for category in Category::ALL {
        let path = folder.join(category.name()).with_extension("logs");
        if path.is_file() {
            let bundle = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let logs = bundle::logs(&bundle).into_iter();
            cases.extend(logs.map(|(name, _, text)| Case { name: name.to_owned(), category, text: text.into() }));
        }
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(cases)
}

/// Logs in files of their own, which a table names and labels.
fn labelled(folder: &Path, path: &Path) -> Result<Vec<Case>> {
    let mut table = csv::Reader::from_path(path).with_context(|| format!("read {}", path.display()))?;
    let headers = table.headers()?.clone();
    let column = |name: &str| headers.iter().position(|header| header == name);
    let (file, category) = column("file").zip(column("category")).context("labels.csv needs file and category")?;
    let mut cases = Vec::new();
    for row in table.records() {
        let row = row?;
        let (name, label) = (row[file].to_owned(), &row[category]);
        let category = Category::from_name(label).with_context(|| format!("{name}: no category {label:?}"))?;
        let text = std::fs::read(folder.join(&name)).with_context(|| format!("read {name}"))?;
        cases.push(Case { name, category, text });
    }
    Ok(cases)
}

fn verdict(rules: &Rules, case: &Case) -> gangline_diagnosis::Verdict {
    let log = Log { name: case.name.clone(), text: &case.text, ..Log::default() };
    rules.classify(&Evidence { logs: vec![log], ..Evidence::default() })
}

/// Prints and gives the shares of right and of confidently wrong answers. Unknown is right only where the label says so.
fn score(name: &str, cases: &[Case], classify: Classifier<'_>) -> (f64, f64) {
    let answers: Vec<(Category, Category)> = cases.iter().map(|case| (case.category, classify(case))).collect();
    let share = |count: usize| 100.0 * f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / answers.len() as f64;
    let right = share(answers.iter().filter(|(label, answer)| label == answer).count());
    let wrong = answers.iter().filter(|(label, answer)| label != answer && *answer != Category::Unknown);
    let wrong = share(wrong.count());
    println!("  {name:<24} {right:>7.1} {wrong:>7.1} {:>8.1}", 100.0 - right - wrong);
    (right, wrong)
}

/// Prints what each label was taken for.
fn confusion(cases: &[Case], classify: Classifier<'_>) {
    let mut counts: BTreeMap<(Category, Category), usize> = BTreeMap::new();
    for case in cases {
        *counts.entry((case.category, classify(case))).or_default() += 1;
    }
    for label in Category::ALL {
        let answers = counts.iter().filter(|((of, _), _)| *of == label);
        let answers: Vec<String> = answers.map(|((_, answer), count)| format!("{answer} {count}")).collect();
        if !answers.is_empty() {
            println!("  {:<24} {}", label.name(), answers.join(", "));
        }
    }
}

fn by_exit_code(case: &Case) -> Category {
    let text = String::from_utf8_lossy(&case.text).to_lowercase();
    let code = ["exit code: ", "exit code ", "exitcode: ", "exitcode  : "].iter().find_map(|word| {
        let rest = text.rsplit_once(word)?.1;
        rest.split(|letter: char| !letter.is_ascii_digit() && letter != '-').next()?.parse::<i32>().ok()
    });
    match code {
        Some(137 | -9) => Category::HostOom,
        Some(139 | -11 | 1 | 2 | 126 | 127) => Category::UserCode,
        Some(143 | -15) => Category::Preemption,
        Some(134 | -6) => Category::NcclNetwork,
        _ => Category::Unknown,
    }
}

fn by_words(case: &Case) -> Category {
    const WORDS: [(&str, Category); 14] = [
        ("xid", Category::Hardware),
        ("ecc", Category::Hardware),
        ("cuda out of memory", Category::CudaOom),
        ("resource_exhausted", Category::CudaOom),
        ("oom", Category::HostOom),
        ("preempt", Category::Preemption),
        ("no space left", Category::Storage),
        ("input/output error", Category::Storage),
        ("nan", Category::Numerical),
        ("dataloader", Category::DataPipeline),
        ("nccl", Category::NcclNetwork),
        ("connection", Category::NcclNetwork),
        ("slurm", Category::SchedulerInfra),
        ("traceback", Category::UserCode),
    ];
    let text = String::from_utf8_lossy(&case.text).to_lowercase();
    WORDS.iter().find(|(word, _)| text.contains(word)).map_or(Category::Unknown, |(_, category)| *category)
}

fn by_traceback(case: &Case) -> Category {
    let text = String::from_utf8_lossy(&case.text);
    let is_exception = |line: &&str| {
        let name = line.split(':').next().unwrap_or("");
        (name.ends_with("Error") || name.ends_with("Exception")) && !name.contains(' ')
    };
    let Some(last) = text.lines().rev().find(is_exception) else { return Category::Unknown };
    let last = last.to_lowercase();
    match () {
        () if last.contains("outofmemory") || last.contains("out of memory") => Category::CudaOom,
        () if last.contains("nccl") || last.contains("dist") || last.contains("connection") => Category::NcclNetwork,
        () if last.starts_with("memoryerror") => Category::HostOom,
        () if last.starts_with("oserror") || last.starts_with("permissionerror") => Category::Storage,
        () if last.starts_with("floatingpointerror") => Category::Numerical,
        () if last.contains("dataloader") => Category::DataPipeline,
        () => Category::UserCode,
    }
}

/// The time to classify a long log of steps, one of them with words that look like trouble.
fn timed(rules: &Rules) -> Duration {
    let mut text = String::new();
    let mut step = 0_u64;
    while text.len() < TIMED_BYTES {
        step += 1;
        text += &format!(
            "[rank{}]: 2026-01-02 03:04:05,678 INFO step {step} | loss 2.3142 | error_rate 0.01 | tok/s 18021\n",
            step % 8
        );
    }
    text += "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";
    let case = Case { name: "long".to_owned(), category: Category::CudaOom, text: text.into_bytes() };
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..5 {
        let before = Instant::now();
        assert_eq!(verdict(rules, &case).category, Category::CudaOom, "the long log's failure is found");
        times.push(before.elapsed());
    }
    times.sort();
    times[2]
}
