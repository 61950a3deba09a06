//! The keys `image` and `volumes`: the container image in which a job's commands run, and what they see of the node.

use std::collections::BTreeSet;
use std::path::Path;

use gangline_base::{Container, Volume};

use super::Context;
use super::field::{Field, Section, scalar};
use super::job::absolute;
use super::problem::{Code, Place, Problems, Refusal, shown};
use super::yaml::{Node, Value};

/// The longest name of an image: a registry, a path of 255 bytes, a tag of 128 and a digest of 71 (distribution's
/// reference grammar, github.com/distribution/reference).
const IMAGE_BYTES_MAX: usize = 1_024;
/// The most volumes of a job.
const VOLUMES_MAX: usize = 64;

/// Reads both keys. The outer option is none if they were refused.
pub(super) fn read(top: &Section<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<Option<Container>> {
    let image = top.get_or("image", None, |field| field.parsed(problems, |text| image(text, context.base)).map(Some));
    let volumes = top.get_or("volumes", None, |field| {
        volumes(field, context.base, problems).map(|volumes| Some((field.place().clone(), volumes)))
    });
    match (image?, volumes?) {
        (None, None) => Some(None),
        (None, Some((place, _))) => {
            let refusal = Refusal::new(Code::BadValue, "\"volumes\" are of a container, and the job has no \"image\"");
            problems.add(&place, refusal.hint("without an image the job sees all that its node has"));
            None
        }
        (Some(image), volumes) => {
            let volumes = volumes.map(|(_, volumes)| volumes).unwrap_or_default();
            Some(Some(Container { image, volumes }))
        }
    }
}

/// Refuses a working directory that would hide the whole image.
pub(super) fn check_workdir(container: &Container, workdir: &str, place: &Place, problems: &mut Problems) {
    if Path::new(workdir).parent().is_none() {
        let message = format!("\"workdir\" {workdir} would hide the image {}", container.image);
        problems.add(place, Refusal::new(Code::BadValue, message).hint("write a folder below it"));
    }
}

/// Parses a name in a registry, or the path of a file: `/images/torch.sif`, or `./torch.sif` beside the job file.
fn image(text: &str, base: &Path) -> Result<String, Refusal> {
    if ["/", "./", "../"].iter().any(|start| text.starts_with(start)) {
        return file(text, base);
    }
    let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:@".contains(&byte);
    let is_name = text.bytes().all(is_sound) && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if text.len() > IMAGE_BYTES_MAX || !is_name {
        return Err(Refusal::new(Code::BadValue, "is no name of a container image").hint(
            "write REGISTRY/PATH:TAG, such as docker.io/pytorch/pytorch:2.6.0-cuda12.6-cudnn9-runtime, or the path of a \
             file, such as /images/torch.sif",
        ));
    }
    Ok(text.to_owned())
}

fn file(text: &str, base: &Path) -> Result<String, Refusal> {
    let path = absolute(base, text).to_str().map(str::to_owned);
    let is_sound = |path: &String| path.len() <= IMAGE_BYTES_MAX && !path.chars().any(char::is_control);
    path.filter(is_sound).ok_or_else(|| {
        Refusal::new(Code::BadValue, "is no path of an image")
            .hint("write the path of a file that Apptainer or enroot runs, such as /images/torch.sif")
    })
}

fn volumes(field: Field<'_>, base: &Path, problems: &mut Problems) -> Option<Vec<Volume>> {
    let items = match &field.node.value {
        Value::List(items) => items.as_slice(),
        _ => std::slice::from_ref(field.node),
    };
    if items.len() > VOLUMES_MAX {
        let message = format!("has {} volumes, over the limit of {VOLUMES_MAX}", items.len());
        field.refuse(problems, Refusal::new(Code::OutOfRange, message).hint("mount a folder above them"));
        return None;
    }
    let mut targets = BTreeSet::new();
    let read = |item: &Node| volume(item, base, &mut targets);
    let volumes: Vec<Result<Volume, Refusal>> = items.iter().map(read).collect();
    let volumes: Vec<Option<Volume>> = volumes.into_iter().map(|volume| field.keep(problems, volume)).collect();
    volumes.into_iter().collect()
}

/// Parses `SOURCE`, `SOURCE:TARGET` or `SOURCE:TARGET:ro`, as podman and docker do.
fn volume(item: &Node, base: &Path, targets: &mut BTreeSet<String>) -> Result<Volume, Refusal> {
    let text = scalar(item)?;
    let wrong = |message: String| {
        Err(Refusal::new(Code::BadValue, message).hint("write SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro"))
    };
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, is_read_only) = match parts[..] {
        [source] => (source, None, false),
        [source, "ro"] => (source, None, true),
        [source, target] | [source, target, "rw"] => (source, Some(target), false),
        [source, target, "ro"] => (source, Some(target), true),
        _ => return wrong(format!("has a volume in an unknown form: {}", shown(text))),
    };
    // Podman separates options by commas.
    if source.is_empty() || text.contains(|letter: char| letter.is_control() || letter == ',') {
        return wrong(format!("has a volume that can't be mounted: {}", shown(text)));
    }
    let Some(source) = absolute(base, source).to_str().map(str::to_owned) else {
        return wrong(format!("has a volume whose path is not UTF-8: {}", shown(text)));
    };
    let target = target.unwrap_or(&source).to_owned();
    if !Path::new(&target).is_absolute() || Path::new(&target).parent().is_none() {
        return wrong(format!(
            "has a volume whose place in the container is no absolute path below /: {}",
            shown(text)
        ));
    }
    if !targets.insert(target.clone()) {
        return wrong(format!("has two volumes at {}", shown(&target)));
    }
    Ok(Volume { source, target, is_read_only })
}
