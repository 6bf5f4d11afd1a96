//! The S3 operations that Ebb supports. All others are refused before they come here ([`crate::http::understood`]).

use crate::bytes::backend::Backend;
use crate::convert::{REGION, check_version, url_encoded};
use crate::gateway::Gateway;
use crate::ops::bucket::{check_acl, grants};
use crate::ops::list::owner;
use crate::ops::rules::LEAST_SIZE;
use crate::ops::{cors, lifecycle, list, tags};
use ebb_types::BucketSetting;
use hyper::{Method, StatusCode};
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};
use std::sync::Arc;

/// Where the object of a form is.
#[derive(Clone)]
pub struct Place(pub String);

/// The gateway in the form the library requires.
pub struct Operations<B>(pub Arc<Gateway<B>>);

fn answer<T>(output: S3Result<T>) -> S3Result<S3Response<T>> {
    output.map(S3Response::new)
}

/// The answer says nothing more.
fn done<T: Default>(outcome: S3Result<()>) -> S3Result<S3Response<T>> {
    answer(outcome.map(|()| T::default()))
}

fn least_size() -> Option<TransitionDefaultMinimumObjectSize> {
    Some(TransitionDefaultMinimumObjectSize::from_static(LEAST_SIZE))
}

/// Writes the library's trait from a table of operations: what each one takes, what it returns, and how. An operation
/// that one call carries out is a row: `answer` returns what the call does, `done` nothing more. Of a bucket, `unset`
/// says that it has none of that, by the code that clients know, and `empty` that all is as it was.
macro_rules! operations {
    (|$gateway:ident, $req:ident| $(
        $(#[$about:meta])*
        fn $name:ident($input:ident $(,)?) -> $output:ident { $($body:tt)* }
    )* $(
        answer $answer:ident($answer_input:ident) -> $answer_output:ident = $call:expr;
    )* $(
        done $done:ident($done_input:ident) -> $done_output:ident = $act:expr;
    )* $(
        unset $unset:ident($unset_input:ident) -> $unset_output:ident, $code:literal, $what:literal;
    )* $(
        empty $empty:ident($empty_input:ident) -> $empty_output:ident;
    )*) => {
        #[async_trait::async_trait]
        impl<B: Backend> S3 for Operations<B> {$(
            $(#[$about])*
            async fn $name(&self, $req: S3Request<$input>) -> S3Result<S3Response<$output>> {
                let $gateway = &*self.0;
                $($body)*
            }
        )*$(
            async fn $answer(&self, $req: S3Request<$answer_input>) -> S3Result<S3Response<$answer_output>> {
                let $gateway = &*self.0;
                answer($call.await)
            }
        )*$(
            async fn $done(&self, $req: S3Request<$done_input>) -> S3Result<S3Response<$done_output>> {
                let $gateway = &*self.0;
                done($act.await)
            }
        )*$(
            async fn $unset(&self, $req: S3Request<$unset_input>) -> S3Result<S3Response<$unset_output>> {
                self.0.buckets.unset($req.input.bucket, $code, $what).await
            }
        )*$(
            async fn $empty(&self, $req: S3Request<$empty_input>) -> S3Result<S3Response<$empty_output>> {
                done(self.0.buckets.check($req.input.bucket).await)
            }
        )*}
    };
}

operations! {
    |gateway, req|

    fn list_buckets(ListBucketsInput) -> ListBucketsOutput {
        let key = req.credentials.and_then(|credentials| gateway.keys.get(&credentials.access_key));
        answer(gateway.buckets.list(req.input, key).await)
    }

    fn create_bucket(CreateBucketInput) -> CreateBucketOutput {
        let location = Some(format!("/{}", req.input.bucket));
        gateway.buckets.create(req.input).await?;
        answer(Ok(CreateBucketOutput { location }))
    }

    fn head_bucket(HeadBucketInput) -> HeadBucketOutput {
        let location = gateway.buckets.location(req.input.bucket).await?;
        let region =
            location.filter(|name| !gateway.buckets.is_pool(name)).unwrap_or_else(|| REGION.to_owned());
        answer(Ok(HeadBucketOutput { bucket_region: Some(region), ..Default::default() }))
    }

    /// The bucket's pool; empty: the replicated one. A signature for any region is accepted, whatever location the
    /// bucket reports.
    fn get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput {
        let location = gateway.buckets.location(req.input.bucket).await?;
        let location_constraint = location.map(BucketLocationConstraint::from);
        answer(Ok(GetBucketLocationOutput { location_constraint }))
    }

    /// Empty: versioning was never enabled.
    fn get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput {
        done(gateway.buckets.check(req.input.bucket).await)
    }

    /// Forms come here, too; their answer tells where the object is.
    fn put_object(PutObjectInput) -> PutObjectOutput {
        let place = || format!("/{}/{}", req.input.bucket, url_encoded(&req.input.key));
        let place = (req.method == Method::POST).then(place);
        let mut response = S3Response::new(gateway.objects.put(req).await?);
        if let Some(place) = place {
            response.extensions.insert(Place(place));
        }
        Ok(response)
    }

    fn head_object(HeadObjectInput) -> HeadObjectOutput {
        gateway.objects.head(req).await
    }

    /// The polite way to read from servers that sleep: 202 if they are being woken, 200 if they are awake.
    fn restore_object(RestoreObjectInput) -> RestoreObjectOutput {
        let slept = gateway.objects.restore(req.input).await?;
        let status = slept.then_some(StatusCode::ACCEPTED);
        Ok(S3Response { status, ..S3Response::new(RestoreObjectOutput::default()) })
    }

    fn get_bucket_cors(GetBucketCorsInput) -> GetBucketCorsOutput {
        let cors_rules = Some(cors::rules(&gateway.buckets, req.input.bucket).await?);
        answer(Ok(GetBucketCorsOutput { cors_rules }))
    }

    fn get_bucket_lifecycle_configuration(
        GetBucketLifecycleConfigurationInput,
    ) -> GetBucketLifecycleConfigurationOutput {
        let rules = Some(lifecycle::rules(&gateway.buckets, req.input.bucket).await?);
        let transition_default_minimum_object_size = least_size();
        answer(Ok(GetBucketLifecycleConfigurationOutput { rules, transition_default_minimum_object_size }))
    }

    fn put_bucket_lifecycle_configuration(
        PutBucketLifecycleConfigurationInput,
    ) -> PutBucketLifecycleConfigurationOutput {
        lifecycle::set(&gateway.buckets, req.input).await?;
        let transition_default_minimum_object_size = least_size();
        answer(Ok(PutBucketLifecycleConfigurationOutput { transition_default_minimum_object_size }))
    }

    fn get_bucket_acl(GetBucketAclInput) -> GetBucketAclOutput {
        gateway.buckets.check(req.input.bucket).await?;
        answer(Ok(GetBucketAclOutput { grants: Some(grants()), owner: Some(owner()) }))
    }

    fn get_object_acl(GetObjectAclInput) -> GetObjectAclOutput {
        check_version(req.input.version_id.as_deref())?;
        gateway.names.object(&req.input.bucket, &req.input.key).await?;
        answer(Ok(GetObjectAclOutput { grants: Some(grants()), owner: Some(owner()), ..Default::default() }))
    }

    fn put_bucket_acl(PutBucketAclInput) -> PutBucketAclOutput {
        check_acl(req.input.acl.is_some(), req.input.access_control_policy)?;
        done(gateway.buckets.check(req.input.bucket).await)
    }

    fn put_object_acl(PutObjectAclInput) -> PutObjectAclOutput {
        check_version(req.input.version_id.as_deref())?;
        check_acl(req.input.acl.is_some(), req.input.access_control_policy)?;
        gateway.names.object(&req.input.bucket, &req.input.key).await?;
        done(Ok(()))
    }

    /// Access lists are not supported, so everything belongs to the bucket's owner.
    fn get_bucket_ownership_controls(GetBucketOwnershipControlsInput) -> GetBucketOwnershipControlsOutput {
        gateway.buckets.check(req.input.bucket).await?;
        let object_ownership = ObjectOwnership::from_static(ObjectOwnership::BUCKET_OWNER_ENFORCED);
        let ownership_controls =
            Some(OwnershipControls { rules: vec![OwnershipControlsRule { object_ownership }] });
        answer(Ok(GetBucketOwnershipControlsOutput { ownership_controls }))
    }

    fn get_bucket_request_payment(GetBucketRequestPaymentInput) -> GetBucketRequestPaymentOutput {
        gateway.buckets.check(req.input.bucket).await?;
        answer(Ok(GetBucketRequestPaymentOutput { payer: Some(Payer::from_static(Payer::BUCKET_OWNER)) }))
    }

    answer list_objects(ListObjectsInput) -> ListObjectsOutput = list::v1(&gateway.names, req.input);
    answer list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = list::v2(&gateway.names, req.input);
    answer get_object(GetObjectInput) -> GetObjectOutput = gateway.objects.get(req);
    answer get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput =
        gateway.objects.attributes(req);
    answer delete_object(DeleteObjectInput) -> DeleteObjectOutput = gateway.objects.delete(req);
    answer delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = gateway.objects.delete_many(req);
    answer copy_object(CopyObjectInput) -> CopyObjectOutput = gateway.objects.copy(req);
    answer create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput =
        gateway.uploads.create(req);
    answer upload_part(UploadPartInput) -> UploadPartOutput = gateway.uploads.put_part(req);
    answer upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = gateway.uploads.copy_part(req);
    answer complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput =
        gateway.uploads.complete(req);
    answer list_parts(ListPartsInput) -> ListPartsOutput = gateway.uploads.list_parts(req.input);
    answer list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput =
        gateway.uploads.list(req.input);
    answer list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput =
        list::versions(&gateway.names, req.input);
    answer get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = tags::get(&gateway.names, req.input);
    answer get_bucket_tagging(GetBucketTaggingInput) -> GetBucketTaggingOutput = gateway.buckets.tags(req.input.bucket);

    done delete_bucket(DeleteBucketInput) -> DeleteBucketOutput = gateway.buckets.delete(req.input.bucket);
    done abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput =
        gateway.uploads.abort(req.input);
    done put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = tags::set(&gateway.names, req.input);
    done delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput =
        tags::remove(&gateway.names, req.input);
    done put_bucket_tagging(PutBucketTaggingInput) -> PutBucketTaggingOutput =
        gateway.buckets.set_tags(req.input.bucket, req.input.tagging);
    done delete_bucket_tagging(DeleteBucketTaggingInput) -> DeleteBucketTaggingOutput =
        gateway.buckets.set(req.input.bucket, BucketSetting::Tags, None);
    done put_bucket_cors(PutBucketCorsInput) -> PutBucketCorsOutput =
        cors::set(&gateway.buckets, req.input.bucket, req.input.cors_configuration);
    done delete_bucket_cors(DeleteBucketCorsInput) -> DeleteBucketCorsOutput =
        gateway.buckets.set(req.input.bucket, BucketSetting::Cors, None);
    done delete_bucket_lifecycle(DeleteBucketLifecycleInput) -> DeleteBucketLifecycleOutput =
        gateway.buckets.set(req.input.bucket, BucketSetting::Lifecycle, None);

    // What no bucket can have here.
    unset get_bucket_policy(GetBucketPolicyInput) -> GetBucketPolicyOutput, "NoSuchBucketPolicy", "policy";
    unset get_bucket_policy_status(GetBucketPolicyStatusInput) -> GetBucketPolicyStatusOutput,
        "NoSuchBucketPolicy", "policy";
    unset get_bucket_website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput, "NoSuchWebsiteConfiguration", "website";
    unset get_bucket_encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput,
        "ServerSideEncryptionConfigurationNotFoundError", "encryption";
    unset get_bucket_replication(GetBucketReplicationInput) -> GetBucketReplicationOutput,
        "ReplicationConfigurationNotFoundError", "replication";
    unset get_object_lock_configuration(GetObjectLockConfigurationInput) -> GetObjectLockConfigurationOutput,
        "ObjectLockConfigurationNotFoundError", "object lock";
    unset get_object_retention(GetObjectRetentionInput) -> GetObjectRetentionOutput,
        "NoSuchObjectLockConfiguration", "object lock";
    unset get_object_legal_hold(GetObjectLegalHoldInput) -> GetObjectLegalHoldOutput,
        "NoSuchObjectLockConfiguration", "object lock";
    unset get_public_access_block(GetPublicAccessBlockInput) -> GetPublicAccessBlockOutput,
        "NoSuchPublicAccessBlockConfiguration", "public access block";

    // Off, and stays off.
    empty get_bucket_logging(GetBucketLoggingInput) -> GetBucketLoggingOutput;
    empty get_bucket_notification_configuration(GetBucketNotificationConfigurationInput)
        -> GetBucketNotificationConfigurationOutput;
    empty get_bucket_accelerate_configuration(GetBucketAccelerateConfigurationInput)
        -> GetBucketAccelerateConfigurationOutput;
    empty delete_bucket_policy(DeleteBucketPolicyInput) -> DeleteBucketPolicyOutput;
    empty delete_bucket_website(DeleteBucketWebsiteInput) -> DeleteBucketWebsiteOutput;
    empty delete_bucket_encryption(DeleteBucketEncryptionInput) -> DeleteBucketEncryptionOutput;
    empty delete_bucket_replication(DeleteBucketReplicationInput) -> DeleteBucketReplicationOutput;
    empty delete_public_access_block(DeletePublicAccessBlockInput) -> DeletePublicAccessBlockOutput;
}
