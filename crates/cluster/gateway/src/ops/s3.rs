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

/// Writes the library's trait from a table of operations: what each one takes, what it returns, and how.
macro_rules! operations {
    (|$gateway:ident, $req:ident| $(
        $(#[$about:meta])*
        fn $name:ident($input:ident $(,)?) -> $output:ident { $($body:tt)* }
    )*) => {
        #[async_trait::async_trait]
        impl<B: Backend> S3 for Operations<B> {$(
            $(#[$about])*
            async fn $name(&self, $req: S3Request<$input>) -> S3Result<S3Response<$output>> {
                let $gateway = &*self.0;
                $($body)*
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

    fn delete_bucket(DeleteBucketInput) -> DeleteBucketOutput {
        done(gateway.buckets.delete(req.input.bucket).await)
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

    fn list_objects(ListObjectsInput) -> ListObjectsOutput {
        answer(list::v1(&gateway.names, req.input).await)
    }

    fn list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output {
        answer(list::v2(&gateway.names, req.input).await)
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

    fn get_object(GetObjectInput) -> GetObjectOutput {
        answer(gateway.objects.get(req).await)
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

    fn get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput {
        answer(gateway.objects.attributes(req).await)
    }

    fn delete_object(DeleteObjectInput) -> DeleteObjectOutput {
        answer(gateway.objects.delete(req).await)
    }

    fn delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput {
        answer(gateway.objects.delete_many(req).await)
    }

    fn copy_object(CopyObjectInput) -> CopyObjectOutput {
        answer(gateway.objects.copy(req).await)
    }

    fn create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput {
        answer(gateway.uploads.create(req).await)
    }

    fn upload_part(UploadPartInput) -> UploadPartOutput {
        answer(gateway.uploads.put_part(req).await)
    }

    fn upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput {
        answer(gateway.uploads.copy_part(req).await)
    }

    fn complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput {
        answer(gateway.uploads.complete(req).await)
    }

    fn abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput {
        done(gateway.uploads.abort(req.input).await)
    }

    fn list_parts(ListPartsInput) -> ListPartsOutput {
        answer(gateway.uploads.list_parts(req.input).await)
    }

    fn list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput {
        answer(gateway.uploads.list(req.input).await)
    }

    fn list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput {
        answer(list::versions(&gateway.names, req.input).await)
    }

    fn get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput {
        answer(tags::get(&gateway.names, req.input).await)
    }

    fn put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput {
        done(tags::set(&gateway.names, req.input).await)
    }

    fn delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput {
        done(tags::remove(&gateway.names, req.input).await)
    }

    fn get_bucket_tagging(GetBucketTaggingInput) -> GetBucketTaggingOutput {
        answer(gateway.buckets.tags(req.input.bucket).await)
    }

    fn put_bucket_tagging(PutBucketTaggingInput) -> PutBucketTaggingOutput {
        done(gateway.buckets.set_tags(req.input.bucket, req.input.tagging).await)
    }

    fn delete_bucket_tagging(DeleteBucketTaggingInput) -> DeleteBucketTaggingOutput {
        done(gateway.buckets.set(req.input.bucket, BucketSetting::Tags, None).await)
    }

    fn get_bucket_cors(GetBucketCorsInput) -> GetBucketCorsOutput {
        let cors_rules = Some(cors::rules(&gateway.buckets, req.input.bucket).await?);
        answer(Ok(GetBucketCorsOutput { cors_rules }))
    }

    fn put_bucket_cors(PutBucketCorsInput) -> PutBucketCorsOutput {
        done(cors::set(&gateway.buckets, req.input.bucket, req.input.cors_configuration).await)
    }

    fn delete_bucket_cors(DeleteBucketCorsInput) -> DeleteBucketCorsOutput {
        done(gateway.buckets.set(req.input.bucket, BucketSetting::Cors, None).await)
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

    fn delete_bucket_lifecycle(DeleteBucketLifecycleInput) -> DeleteBucketLifecycleOutput {
        done(gateway.buckets.set(req.input.bucket, BucketSetting::Lifecycle, None).await)
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

    fn get_bucket_policy(GetBucketPolicyInput) -> GetBucketPolicyOutput {
        gateway.buckets.unset(req.input.bucket, "NoSuchBucketPolicy", "policy").await
    }

    fn get_bucket_policy_status(GetBucketPolicyStatusInput) -> GetBucketPolicyStatusOutput {
        gateway.buckets.unset(req.input.bucket, "NoSuchBucketPolicy", "policy").await
    }

    fn get_bucket_website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput {
        gateway.buckets.unset(req.input.bucket, "NoSuchWebsiteConfiguration", "website").await
    }

    fn get_bucket_encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput {
        let code = "ServerSideEncryptionConfigurationNotFoundError";
        gateway.buckets.unset(req.input.bucket, code, "encryption").await
    }

    fn get_bucket_replication(GetBucketReplicationInput) -> GetBucketReplicationOutput {
        gateway.buckets.unset(req.input.bucket, "ReplicationConfigurationNotFoundError", "replication").await
    }

    fn get_object_lock_configuration(GetObjectLockConfigurationInput) -> GetObjectLockConfigurationOutput {
        gateway.buckets.unset(req.input.bucket, "ObjectLockConfigurationNotFoundError", "object lock").await
    }

    fn get_object_retention(GetObjectRetentionInput) -> GetObjectRetentionOutput {
        gateway.buckets.unset(req.input.bucket, "NoSuchObjectLockConfiguration", "object lock").await
    }

    fn get_object_legal_hold(GetObjectLegalHoldInput) -> GetObjectLegalHoldOutput {
        gateway.buckets.unset(req.input.bucket, "NoSuchObjectLockConfiguration", "object lock").await
    }

    fn get_public_access_block(GetPublicAccessBlockInput) -> GetPublicAccessBlockOutput {
        let code = "NoSuchPublicAccessBlockConfiguration";
        gateway.buckets.unset(req.input.bucket, code, "public access block").await
    }

    fn get_bucket_logging(GetBucketLoggingInput) -> GetBucketLoggingOutput {
        done(gateway.buckets.check(req.input.bucket).await)
    }

    fn get_bucket_notification_configuration(
        GetBucketNotificationConfigurationInput,
    ) -> GetBucketNotificationConfigurationOutput {
        done(gateway.buckets.check(req.input.bucket).await)
    }

    fn get_bucket_accelerate_configuration(
        GetBucketAccelerateConfigurationInput,
    ) -> GetBucketAccelerateConfigurationOutput {
        done(gateway.buckets.check(req.input.bucket).await)
    }

    fn delete_bucket_policy(DeleteBucketPolicyInput) -> DeleteBucketPolicyOutput {
        done(gateway.buckets.check(req.input.bucket).await)
    }

    fn delete_bucket_website(DeleteBucketWebsiteInput) -> DeleteBucketWebsiteOutput {
        done(gateway.buckets.check(req.input.bucket).await)
    }

    fn delete_bucket_encryption(DeleteBucketEncryptionInput) -> DeleteBucketEncryptionOutput {
        done(gateway.buckets.check(req.input.bucket).await)
    }

    fn delete_bucket_replication(DeleteBucketReplicationInput) -> DeleteBucketReplicationOutput {
        done(gateway.buckets.check(req.input.bucket).await)
    }

    fn delete_public_access_block(DeletePublicAccessBlockInput) -> DeletePublicAccessBlockOutput {
        done(gateway.buckets.check(req.input.bucket).await)
    }
}
