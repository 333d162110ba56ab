//! Arguments of `rehang gallery`, `search`, `init` and `bench`.

use std::path::PathBuf;

use clap::{ArgGroup, Subcommand};
use rehang_core::Distance;
use rehang_upgrade::ModelsInput;

use super::library::distances;

/// The verbs on a gallery file.
#[derive(Debug, Subcommand)]
pub enum GalleryCommand {
    /// Put vectors and their items into a gallery file, which is made where there is none.
    Import(ImportArguments),
    /// Write the vectors of a space into files, with ids and provenance.
    Export(ExportArguments),
    /// Put one item, new or changed, as an application would.
    Put(PutArguments),
    /// Delete items.
    Delete(DeleteArguments),
    /// Drop a space with all its vectors: one that an upgrade left behind. There is no way back.
    DropSpace(DropSpaceArguments),
    /// Make the search index of a space, so that the first search need not compare every vector.
    ///
    /// `rehang upgrade start` and `run` do so at their end. Does nothing where the index is ready, and says
    /// its recall.
    Index(IndexArguments),
    /// Give the disk the room back that a dropped space leaves in the file.
    Compact(WhichGallery),
    /// Make a gallery of the table or collection that a configuration names: one schema and triggers on the
    /// table, or two fields in each point and a collection beside it. Applications go on as before.
    Adopt(AdoptArguments),
    /// Take everything of ours out of the database again: the table, or the collection, is left as it was
    /// found, but for the column, or the named vector, that it serves from.
    Release(ReleaseArguments),
    /// Say what a gallery holds: its spaces, how many items and vectors of each provenance, which space
    /// serves.
    Info(WhichGallery),
}

arguments! {
    /// Options of `rehang gallery import`.
    ImportArguments {
        /// Gallery file.
        gallery: PathBuf = [long, value_name = "FILE"],
        /// Name of the model that made the vectors.
        space: String = [long, value_name = "NAME"],
        /// Vectors, one row an item.
        vectors: String = [long, value_name = "FILE"],
        /// Items, one JSON object a line: {"id": "…", "source": "…", "label": …, "payload": …}. Only the id
        /// is required; what has no source cannot be embedded again.
        items: PathBuf = [long, value_name = "FILE"],
        /// Distance of the space.
        distance: String = [long, default_value = "cosine", help = format!("Distance of the space: {}", distances())],
    }

    /// Gallery to work on: a file, or the one of a configuration, where it may be a table of PostgreSQL or a
    /// collection of Qdrant.
    #[group(required = true, multiple = false)]
    WhichGallery {
        /// Gallery file.
        gallery: Option<PathBuf> = [long, value_name = "FILE"],
        /// Configuration of an upgrade, for its gallery.
        config: Option<PathBuf> = [long, value_name = "FILE"],
    }

    /// Options of `rehang gallery adopt`.
    AdoptArguments {
        /// Configuration, whose [gallery] is of kind "postgres" or "qdrant".
        config: PathBuf = [long, value_name = "FILE", default_value = "rehang.toml"],
        /// Print every statement that would be run, for the owner of the table to read, and run none.
        dry_run: bool = [long],
    }

    /// Options of `rehang gallery release`.
    ReleaseArguments {
        /// Configuration, whose [gallery] is of kind "postgres" or "qdrant".
        config: PathBuf = [long, value_name = "FILE", default_value = "rehang.toml"],
        /// The column of a table that the vectors of the space that serves move into first, with an index; it
        /// is made if it is not there [default: [new] column of the configuration, or one named after the old
        /// vectors' column and the new model].
        into: Option<String> = [long, value_name = "COLUMN"],
        /// Move none: drop every vector that is not in the table itself, or not of the space that serves a
        /// collection.
        yes: bool = [long, conflicts_with = "into"],
        /// Release, with --yes, also where searches of a table have no other vectors than these.
        anyway: bool = [long, requires = "yes"],
        /// Take adapted vectors along, of items that are not native: a table NAME_adapted beside the
        /// application's has their keys then, and points of a collection have the field "rehang_adapted".
        with_adapted: bool = [long],
    }

    /// Options of `rehang gallery export`.
    ExportArguments {
        which: WhichGallery = [flatten],
        /// Name of the space.
        space: String = [long, value_name = "NAME"],
        /// Vectors, one row an item, in the order in which items came (.npy).
        vectors: PathBuf = [long, value_name = "FILE"],
        /// Ids, one a line.
        ids: Option<PathBuf> = [long, value_name = "FILE"],
        /// Provenance, one a line: old, adapted or native.
        provenance: Option<PathBuf> = [long, value_name = "FILE"],
    }

    /// Options of `rehang gallery put`.
    PutArguments {
        /// Gallery file [default: the one of --config, which is enough by itself].
        gallery: Option<PathBuf> = [long, value_name = "FILE", required_unless_present = "config"],
        /// The item's id.
        id: String = [long],
        /// Source: what can be embedded again, a text, a path or a URL [default: as it was].
        source: Option<String> = [long],
        /// Class, tag or group of the item [default: as it was].
        label: Option<String> = [long],
        /// Anything you keep beside it, as JSON [default: as it was].
        payload: Option<String> = [long, value_name = "JSON"],
        /// Vector of the item in a space: NAME=FILE with one row, or NAME=[0.1,0.2,…]. Repeat for several
        /// spaces. Every put is a change of the content: vectors that are not given belong to the content
        /// before and are removed, which is said.
        vectors: Vec<String> = [long = "vector", value_name = "NAME=VECTOR"],
        /// Configuration of a live upgrade: an item with an old vector only is adapted in the same
        /// transaction, so that no search misses it.
        config: Option<PathBuf> = [long, value_name = "FILE"],
    }

    /// Options of `rehang gallery delete`.
    DeleteArguments {
        which: WhichGallery = [flatten],
        /// Ids of the items.
        ids: Vec<String> = [value_name = "ID"],
        /// An id (repeat for several), for scripts.
        more_ids: Vec<String> = [long = "id", value_name = "ID"],
    }

    /// Options of `rehang gallery index`.
    IndexArguments {
        which: WhichGallery = [flatten],
        /// Name of the space [default: the one that serves].
        space: Option<String> = [long, value_name = "NAME"],
    }

    /// Options of `rehang gallery drop-space`.
    DropSpaceArguments {
        which: WhichGallery = [flatten],
        /// Name of the space: neither the one that serves, nor one of an upgrade that is not finished; but
        /// one that only has pairs so far.
        space: String = [long, value_name = "NAME"],
    }

    /// Options of `rehang search`.
    #[command(group(ArgGroup::new("queries").required(true).multiple(true).args(["vectors", "texts", "images"])))]
    SearchArguments {
        /// Gallery file [default: the one of --config].
        gallery: Option<PathBuf> = [long, value_name = "FILE", conflicts_with_all = ["config", "texts", "images"]],
        /// Configuration of an upgrade, for its gallery and for the encoders of texts and images.
        config: PathBuf = [long, value_name = "FILE", default_value = "rehang.toml"],
        /// A text to search by (repeat for several). It is embedded by the model that serves, for fused
        /// searches by both: [encoder] and [old.encoder] of the configuration.
        texts: Vec<String> = [long = "text", value_name = "TEXT"],
        /// An image to search by (repeat for several; they come after the texts).
        images: Vec<PathBuf> = [long = "image", value_name = "FILE"],
        /// Show beside it what the old model would have answered, as long as its space is there.
        before: bool = [long, conflicts_with = "vectors"],
        /// Queries, one a row, embedded by the model that serves now.
        vectors: Option<String> = [long, value_name = "FILE", conflicts_with_all = ["texts", "images"]],
        /// Old model's vectors of the same queries: searched before the switch and after a rollback, and
        /// beside the others where an upgrade serves fused searches.
        old_vectors: Option<String> = [long, value_name = "FILE", requires = "vectors", conflicts_with_all = ["texts", "images"]],
        /// Fail unless this space serves: two models of one width cannot be told apart otherwise.
        space: Option<String> = [long, value_name = "NAME"],
        /// Neighbours of each query.
        k: usize = [short, default_value_t = 10],
        /// Find only items with this label (repeat for several).
        labels: Vec<String> = [long = "label", value_name = "LABEL"],
        /// Find only items whose payload has this field with this value (JSON, or a plain word).
        payload: Vec<String> = [long = "payload", value_name = "FIELD=VALUE"],
        /// Find only vectors of this provenance: old, adapted or native (repeat for several).
        provenances: Vec<String> = [long = "provenance", value_name = "NAME"],
    }

    /// Options of `rehang init`.
    InitArguments {
        /// Gallery file: it says which space is replaced.
        gallery: Option<PathBuf> = [long, value_name = "FILE", required_unless_present = "of_application"],
        /// A table of PostgreSQL with vectors, in place of a gallery file; --old-name says which model made
        /// them.
        table: Option<String> = [long, value_name = "TABLE", group = "of_application", conflicts_with = "gallery", requires = "old_name"],
        /// A collection of Qdrant, in place of a gallery file; --old-name says which model made its vectors.
        collection: Option<String> = [long, value_name = "NAME", group = "of_application", conflicts_with = "gallery", requires = "old_name"],
        /// Address of the server, http://127.0.0.1:6333 [default: the variable QDRANT_URL]. A key is read
        /// from the variable QDRANT_API_KEY.
        qdrant: Option<String> = [long, value_name = "URL", requires = "collection"],
        /// Send that key over http:// to another machine, where it can be read on the way.
        plain_http: bool = [long, requires = "collection"],
        /// Address of the database, postgresql://USER@HOST/DATABASE [default: the variable DATABASE_URL]. One
        /// with a password is not written down.
        postgres: Option<String> = [long, value_name = "URL", requires = "table"],
        /// Column, or named vector, with the vectors of the old model ("" is a collection's unnamed one)
        /// [default: the only one].
        vector: Option<String> = [long, value_name = "NAME", requires = "of_application"],
        /// Column, SQL expression or payload field with what can be embedded again [default: the only one of
        /// text beside the key].
        source: Option<String> = [long, value_name = "NAME", requires = "of_application"],
        /// Column, or payload field, with a class, tag or group.
        label: Option<String> = [long, value_name = "NAME", requires = "of_application"],
        /// Name of the model that made the vectors of the table or collection.
        old_name: Option<String> = [long, value_name = "NAME", requires = "of_application"],
        /// Distance that the table's or collection's vectors are searched by.
        old_distance: String = [
            long, value_name = "DISTANCE", default_value = "cosine",
            help = format!("Distance that the table's or collection's vectors are searched by: {}", distances())
        ],
        /// Adapter: it says which space comes. Leave it out for one that `rehang upgrade fit` learns from the
        /// gallery, or for a model that searches the old vectors as they are.
        adapter: Option<PathBuf> = [long, value_name = "FILE", required_unless_present = "new_name"],
        /// Width of the new model's vectors, where no adapter says it [default: the adapter's, or that of the
        /// old space].
        new_dimension: Option<usize> = [long, value_name = "N"],
        /// Width of the new model's own vectors, where they are kept at another one, --new-dimension: wider
        /// ones are cut to the first coordinates, scaled to length 1; shorter ones are filled up with zeros,
        /// as in columns of one width for all models.
        new_model_dimension: Option<usize> = [long, value_name = "N"],
        /// Distance that the new space is searched by.
        new_distance: Option<String> = [
            long, value_name = "DISTANCE",
            help = format!(
                "Distance that the new space is searched by ({}) [default: the adapter's, or that of the old space]",
                Distance::ALL.map(Distance::name).join(", ")
            )
        ],
        /// Report of the adapter as JSON, which forecasts the upgrade.
        forecast: Option<PathBuf> = [long, value_name = "FILE"],
        /// Name of the new space [default: the adapter's].
        new_name: Option<String> = [long, value_name = "NAME"],
        /// The configuration to write; one that is there is never replaced.
        out: PathBuf = [short, long, value_name = "FILE", default_value = "rehang.toml"],
    }
    /// Options of `rehang bench`.
    BenchArguments {
        /// The models, TOML: one [[model]] each with name, dimension, distance and, where the model's own
        /// vectors are of another width, model_dimension; below it [model.encoder] with the keys of
        /// [encoder]. price_per_hour is that of a machine of one's own.
        models: PathBuf = [long, value_name = "FILE"],
        /// Your documents, one JSON object a line: {"id": …, "source": "…", "label": …, "payload": …}, as for
        /// `rehang gallery import`.
        items: PathBuf = [long, value_name = "FILE"],
        /// Queries as people ask them, one JSON object a line: {"text": "…"} or {"image": "FILE"}, with an
        /// "id" where --clicks names it [default: those of --clicks, or else the documents, each leaving
        /// itself out].
        queries: Option<PathBuf> = [long, value_name = "FILE"],
        /// Clicks, which are what people took from the answers: CSV or JSON lines with query, item and either
        /// weight or position. Without clicks, labels of the documents judge where these ask; without either,
        /// agreement with the first model is measured, which judges nothing.
        clicks: Option<PathBuf> = [long, value_name = "FILE"],
        /// Tell the metric by group too: label, or a field of the payload, of the document that asks or that
        /// was clicked most.
        group: Option<String> = [long, value_name = "FIELD"],
        /// Documents that every model embeds, which costs what embedding them costs: drawn at random, with
        /// all that was clicked.
        sample: usize = [long, value_name = "N", default_value_t = ModelsInput::new("", "").sample],
        /// Documents of the whole gallery, for price and storage, where --items holds a part of it.
        of: Option<u64> = [long, value_name = "N"],
        /// Seed of the sample and of the ranges.
        seed: u64 = [long, default_value_t = 0],
    }
}
