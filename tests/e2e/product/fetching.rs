//! Datasets that a node fetches while their job waits, from a real S3 server that throttles.

use crate::fixtures::product::Product;
use crate::fixtures::s3::Server;
use crate::fixtures::wait_for;

const BYTES: usize = 20 << 20;

#[test]
fn what_a_waiting_job_will_read_is_on_its_node_before_it_starts() {
    let server = Server::start();
    let folder = server.path("s3/bucket/tokens");
    std::fs::create_dir_all(&folder).expect("a folder");
    let tokens: Vec<u8> = (0..BYTES).map(|place| u8::try_from(place % 251).expect("it is small")).collect();
    std::fs::write(folder.join("a.bin"), tokens).expect("an object");
    let mut product = Product::down(&["a=cpu:1"]);
    product.change("--agent-every", "1");
    server.settings().iter().for_each(|(name, value)| product.variable(name, value));
    let cache = product.path("cache").display().to_string();
    product.variable("GANGLINE_DATA_CACHE", &cache);
    product.start();
    let first = product.submit("name: first\nrun: exec sleep 600\n");
    product.wait_state(&first, "running");
    let reader = product.submit("name: reader\ndatasets: s3://bucket/tokens\nrun: exit 0\n");
    let explained = || product.run(&["explain", &reader]).stdout;
    let told = "meanwhile its datasets are fetched on a";
    wait_for("the fetch to be told", || explained().contains(told).then_some(()));
    // What the agent says of the cache is what places jobs.
    wait_for("the node's data to be known", || {
        product.run(&["nodes", "a"]).stdout.contains("s3://bucket/tokens").then_some(())
    });
    wait_for("the fetch to be over", || (!explained().contains(told)).then_some(()));
    let held = product.json(&["data", "cache"]);
    let held = &held["objects"];
    let (bytes, there) = (held[0]["bytes"].as_u64(), held[0]["there_bytes"].as_u64());
    assert_eq!((bytes, there), (u64::try_from(BYTES).ok(), bytes), "{held:#}");
    product.run(&["cancel", &first]);
    product.wait_state(&reader, "succeeded");
    // The job pays for it: three ranges, in a listed folder.
    let asked = || product.json(&["show", &reader])["dataset_reads"][0].clone();
    wait_for("the agent to say what it asked for", || (!asked().is_null()).then_some(()));
    let asked = asked();
    assert_eq!((&asked["dataset"], &asked["bytes"]), (&"s3://bucket/tokens".into(), &BYTES.into()), "{asked:#}");
    let count = |name: &str| asked[name].as_u64().unwrap_or_default();
    assert!(count("get") >= 3 && count("list") >= 1, "{asked:#}");
}

#[test]
fn ranks_are_told_what_their_queue_may_have_of_a_cache() {
    let mut product = Product::down(&["a=cpu:1"]);
    std::fs::create_dir_all(product.data()).expect("a folder");
    let queues = "[[queue]]\nname = 'research'\ndata_cache = '2GB'\n[[queue]]\nname = 'nlp'\nparent = 'research'\n\
                  [[queue]]\nname = 'other'\n";
    std::fs::write(product.data().join("gangline.toml"), queues).expect("a configuration");
    product.start();
    let told = |queue: &str| {
        let job = product.submit(&format!("queue: {queue}\nrun: echo quota=$GANGLINE_DATA_CACHE_QUOTA.\n"));
        product.wait_state(&job, "succeeded");
        product.run(&["logs", &job]).stdout
    };
    assert!(told("nlp").contains("quota=research=2000000000."), "{}", told("nlp"));
    assert!(told("other").contains("quota=."), "{}", told("other"));
    let text = "queue: other\nenvs: {GANGLINE_DATA_CACHE_QUOTA: other=1}\nrun: exit 0\n";
    let refused = product.run(&["submit", &product.job_file("own", text)]);
    assert!(refused.code != 0 && refused.stderr.contains("is set by gangline"), "{}", refused.stderr);
}
